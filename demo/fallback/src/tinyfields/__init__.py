"""Fields that turn Python values into plain ones."""
