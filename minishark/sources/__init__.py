"""Where rows come from: files, object stores, table formats, databases, and users' own sources."""
