"""Where models and builds come from: files, packages, stand-ins and engine source."""
