"""From figures to tables that others read: computed apart from their markup."""
