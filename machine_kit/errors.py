"""The exceptions of this package.

TransportError          an endpoint that cannot be listened at
└── InsecureTransport   tcp without keys, or a key or socket accessible to others
"""


class TransportError(Exception):
    """Nothing can be received at an endpoint, or sent to one."""


class InsecureTransport(TransportError):  # noqa: N818 - a condition, not an error name
    """Messages could be read or forged: tcp without keys, files accessible to others."""
