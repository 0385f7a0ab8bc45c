"""What all rooms speak of: expressions and schemas; tables, their partitions and statistics."""
