"""Worker processes of this machine that share data and rows."""
