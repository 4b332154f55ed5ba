"""The members of a group: built as alone, refused where they cannot share code, held as stacks."""
