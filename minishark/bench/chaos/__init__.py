"""Fault injection: processes are killed and stopped while queries run; every answer is checked.

| module | what it does |
|---|---|
| `schedule` | which faults, and when; pure |
| `victims` | which processes a fault may hit, so that work can go on |
| `testbed` | the cluster under test in folders of its own, and leak checks |
| `peer_session` | another session's program, to be killed |
| `work` | statements and their expected answers |
| `injector` | sends signals at the scheduled times |
| `findings` | figures, and whether all checks passed; pure |
| `experiment` | the run, with a watchdog |
"""
