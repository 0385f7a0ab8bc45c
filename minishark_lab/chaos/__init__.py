"""Fault injection: processes are killed and stopped while queries run; every answer is checked.

| module | what it does |
|---|---|

| `testbed` | the cluster under test in folders of its own, and leak checks |
| `peer_session` | another session's program, to be killed |
| `work` | statements and their expected answers |
| `injector` | plans faults, chooses victims so that work can go on, and sends signals |
| `findings` | figures, and whether all checks passed; pure |
| `experiment` | the run, with a watchdog |
"""
