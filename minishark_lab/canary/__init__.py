"""The three applications of Canary's paper: on minishark, and on what they are compared with."""
