"""The tests' own client of an API server."""

import threading
from pathlib import Path

import certifi

from http_double import Reply, Server
from lab.cluster.access import Access
from lab.cluster.api import Api


def test_threads_share_no_connection_and_each_keeps_its_own():
    with Server(lambda _: Reply(200, b"{}")) as server, Api(Access(server.url, Path(certifi.where()))) as api:
        other = threading.Thread(target=lambda: [api.request("GET", "/a") for _ in range(2)])
        api.request("GET", "/b")
        other.start()
        other.join()
        api.request("GET", "/b")

        assert (server.connections, len(server.requests)) == (2, 4)


def test_the_connections_of_all_threads_are_closed_together():
    clients = []
    with Server(lambda _: Reply()) as server, Api(Access(server.url, Path(certifi.where()))) as api:
        other = threading.Thread(target=lambda: clients.append(api.http))
        other.start()
        other.join()
        clients.append(api.http)

    assert [client.is_closed for client in clients] == [True, True]
