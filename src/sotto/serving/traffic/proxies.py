"""Proxies that may say from which address a request comes.

Behind a proxy every connection comes from the proxy's address. The proxy appends the address of its
own client to the header X-Forwarded-For. Everything before that entry was written by the client
itself, or by another proxy. So only the right-most address that is no trusted proxy is believed.
"""

import ipaddress
from collections.abc import Sequence
from functools import lru_cache

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_ADDRESSES_IN_MEMORY = 4096


class Proxies:
    """The trusted proxies of a service.

    Args:
        networks: their networks, such as 10.0.0.0/8, fd00::/8 or one address.

    Raises:
        ValueError: a network is malformed.
    """

    def __init__(self, networks: Sequence[str] = ()) -> None:
        try:
            self._networks = [ipaddress.ip_network(one) for one in networks]
        except ValueError as error:
            raise ValueError(
                f"--trusted-proxies takes networks such as 10.0.0.0/8 or fd00::/8: {error}"
            ) from None

    def trusts(self, host: str) -> bool:
        """Returns whether the address is that of a trusted proxy."""
        address = address_of(host)
        return address is not None and self._has(address)

    def client(self, proxy: str, forwarded: str) -> str:
        """Returns the address of the client for whom a trusted proxy sends a request.

        Args:
            proxy: address of the proxy.
            forwarded: the values of X-Forwarded-For, with commas in between.

        Returns:
            The right-most address that is not trusted. It is the proxy's own address if there is
            none, or if something that is no address stands further to the right.
        """
        for entry in reversed(forwarded.split(",")):
            address = address_of(entry.strip())
            if address is None:
                return proxy
            if not self._has(address):
                return str(address)
        return proxy

    def _has(self, address: _Address) -> bool:
        return any(address in one for one in self._networks)


@lru_cache(_ADDRESSES_IN_MEMORY)
def address_of(host: str) -> _Address | None:
    """Returns the address that a text stands for; None if it is none.

    An IPv4 address that is written as an IPv6 address counts as the IPv4 address.
    """
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address
