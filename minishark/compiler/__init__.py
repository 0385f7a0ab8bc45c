"""From SQL text to stages: parse and bind, logical plan, physical plan, SQL fragments."""
