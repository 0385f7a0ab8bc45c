"""Chaos: real processes are killed and stopped while queries run, and every answer is checked.

| module | what it does |
|---|---|
| `schedule` | which faults, and when: from a seed, pure |
| `victims` | which process a fault can hit, so that somebody is left |
| `testbed` | the cluster under test, in folders of its own, and what it leaves behind |
| `peer_session` | the program of another session, to be killed |
| `work` | what threads ask of the session, with the right answers |
| `injector` | sends the signals, at their times |
| `experiment` | all of it, with a watchdog, and what is told in the end |
"""
