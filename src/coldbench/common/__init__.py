"""What every layer needs: errors, hashes, folders, locks and job logging."""
