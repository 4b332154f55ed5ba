"""What makes runs side by side: processes of this machine, or Ray's tasks."""
