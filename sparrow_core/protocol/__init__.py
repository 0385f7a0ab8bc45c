"""The wire vocabulary: ids, messages, events, errors, and the state machine contract."""
