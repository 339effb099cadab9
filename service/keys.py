"""Who may change what is served. Until keys are configured: programs on the same machine."""

import ipaddress
from typing import NamedTuple

from fastapi import Request

from service.errors import Forbidden


class Caller(NamedTuple):
    name: str


def require_admin(request: Request) -> Caller:
    """Lets an administrator pass; raises Forbidden for everybody else."""
    host = request.client.host if request.client is not None else ""
    try:
        local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = False
    if not local:
        raise Forbidden("loading and unloading models is only allowed from the machine the service runs on")
    return Caller("local")
