"""A session served to other programs: Flight SQL, for ADBC, JDBC and whatever speaks them."""
