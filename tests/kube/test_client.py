"""The client against a real API server, and its errors against a server that misbehaves."""

from __future__ import annotations

import asyncio
import gc
import json
import ssl
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from kubernetes.aio.client import Configuration
from kubernetes.aio.config import incluster_config as incluster

from kvmedic import __version__
from kvmedic.kube.client import Client, Limits, Pace, connect
from kvmedic.kube.errors import (
    ApiError,
    Call,
    Conflict,
    NoCluster,
    Refused,
    Unavailable,
    WebhookSilent,
    error_for,
)
from kvmedic.kube.objects import CONFIG_MAPS, PODS, Preconditions, Ref, uid_of
from kvmedic.model.edits import PatchOperation
from lab.cluster.light import LightCluster
from lab.cluster.pki import Authority
from worlds.http_double import HangUpError, Reply, Request, Server

SECRET = "do-not-print-me"


@pytest.fixture
async def client(light: LightCluster) -> AsyncIterator[Client]:
    async with await connect(light.kubeconfig, Limits(per_second=500)) as made:
        yield made


def config_map(namespace: str, name: str = "a") -> Ref:
    return Ref(CONFIG_MAPS, namespace, name)


def body(name: str = "a", **data: str) -> dict[str, object]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


class TestRealServer:
    async def test_what_does_not_exist_is_none(self, client: Client, namespace: str) -> None:
        assert await client.get(config_map(namespace)) is None

    async def test_an_object_comes_back_as_it_was_made(self, client: Client, namespace: str) -> None:
        made = await client.create(config_map(namespace), body(key="value"))
        read = await client.get(config_map(namespace))

        assert read == made
        assert read["data"] == {"key": "value"}
        assert read["metadata"]["resourceVersion"]
        assert read["metadata"]["managedFields"][0]["manager"] == "kvmedic"

    async def test_creating_twice_conflicts(self, client: Client, namespace: str) -> None:
        await client.create(config_map(namespace), body())

        with pytest.raises(Conflict, match=r"create /api/v1/namespaces/.*/configmaps/a: 409 AlreadyExists"):
            await client.create(config_map(namespace), body())

    async def test_a_list_over_several_pages_is_whole(
        self, client: Client, namespace: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("kvmedic.kube.client.PAGE", 2)
        for index in range(5):
            await client.create(config_map(namespace, f"m{index}"), body(f"m{index}"))

        found = await client.list(CONFIG_MAPS, namespace)

        names = {each["metadata"]["name"] for each in found} - {"kube-root-ca.crt"}
        assert names == {f"m{index}" for index in range(5)}

    async def test_a_patch_whose_test_fails_conflicts(self, client: Client, namespace: str) -> None:
        await client.create(config_map(namespace), body(key="theirs"))
        patch = [PatchOperation("test", "/data/key", "ours"), PatchOperation("replace", "/data/key", "new")]

        with pytest.raises(Conflict):
            await client.json_patch(config_map(namespace), patch)

        assert (await client.get(config_map(namespace)))["data"] == {"key": "theirs"}

    async def test_a_patch_on_a_path_that_is_gone_conflicts(self, client: Client, namespace: str) -> None:
        await client.create(config_map(namespace), body())

        with pytest.raises(Conflict):
            await client.json_patch(config_map(namespace), [PatchOperation("remove", "/data/key")])

    async def test_an_invalid_object_is_refused_by_field_and_never_quoted(
        self, client: Client, namespace: str
    ) -> None:
        await client.create(config_map(namespace), body())
        patch = [PatchOperation("add", "/data", {SECRET + "/": SECRET})]

        with pytest.raises(Refused) as caught:
            await client.json_patch(config_map(namespace), patch)

        assert "422 Invalid" in str(caught.value)
        assert SECRET not in str(caught.value).replace(f"data[{SECRET}/]", "")

    async def test_an_object_that_cannot_be_decoded_is_refused_and_never_quoted(
        self, client: Client, namespace: str
    ) -> None:
        await client.create(config_map(namespace), body(key=SECRET))

        with pytest.raises(ApiError) as caught:
            await client.json_patch(config_map(namespace), [PatchOperation("add", "/data/n", 7)])

        assert SECRET not in str(caught.value)

    async def test_patching_what_does_not_exist_is_refused(self, client: Client, namespace: str) -> None:
        with pytest.raises(Refused, match="404 NotFound"):
            await client.merge_patch(config_map(namespace), {"data": {"key": "value"}})

    async def test_a_merge_patch_removes_what_is_null(self, client: Client, namespace: str) -> None:
        await client.create(config_map(namespace), body(key="value", other="kept"))

        after = await client.merge_patch(config_map(namespace), {"data": {"key": None}})

        assert after["data"] == {"other": "kept"}

    async def test_replacing_an_older_version_conflicts(self, client: Client, namespace: str) -> None:
        loaded = await client.create(config_map(namespace), body(key="old"))
        await client.merge_patch(config_map(namespace), {"data": {"key": "theirs"}})

        with pytest.raises(Conflict):
            await client.put(config_map(namespace), loaded)

    async def test_an_unchecked_replacement_is_not_sent(self, client: Client, namespace: str) -> None:
        with pytest.raises(ValueError, match="resourceVersion"):
            await client.put(config_map(namespace), body())
        with pytest.raises(ValueError, match="resourceVersion"):
            await client.put_status(config_map(namespace), body())

    async def test_a_status_is_replaced_only_at_its_version(self, client: Client, namespace: str) -> None:
        ref = Ref(PODS, namespace, "p")
        container = {"name": "c", "image": "x"}
        pod = {"metadata": {"name": "p"}, "spec": {"containers": [container], "schedulerName": "none"}}
        loaded = await client.create(ref, pod)

        after = await client.put_status(ref, {**loaded, "status": {"message": "first"}})
        with pytest.raises(Conflict):
            await client.put_status(ref, {**loaded, "status": {"message": "second"}})

        assert after["status"]["message"] == "first"

    async def test_a_deletion_spares_what_took_the_name(self, client: Client, namespace: str) -> None:
        made = await client.create(config_map(namespace), body())
        version = made["metadata"]["resourceVersion"]

        with pytest.raises(Conflict):
            await client.delete(config_map(namespace), Preconditions("another-uid", version))
        await client.merge_patch(config_map(namespace), {"data": {"key": "changed"}})
        with pytest.raises(Conflict):
            await client.delete(config_map(namespace), Preconditions(uid_of(made), version))

        assert await client.get(config_map(namespace)) is not None

    async def test_deleting_twice_is_the_same_as_once(self, client: Client, namespace: str) -> None:
        made = await client.create(config_map(namespace), body())
        preconditions = Preconditions(uid_of(made), made["metadata"]["resourceVersion"])

        await client.delete(config_map(namespace), preconditions)
        await client.delete(config_map(namespace), preconditions)

        assert await client.get(config_map(namespace)) is None

    async def test_a_missing_permission_is_reported_in_the_servers_words(
        self, light: LightCluster, namespace: str, tmp_path: Path
    ) -> None:
        access = light.impersonate("default", namespace)
        configuration = Configuration(host=access.url, ssl_ca_cert=str(access.ca_file))
        configuration.api_key["BearerToken"] = f"Bearer {access.token}"
        async with Client(configuration, Limits()) as nobody:
            with pytest.raises(Refused, match=r'403 Forbidden: .*cannot get resource "configmaps"'):
                await nobody.get(config_map(namespace))
            with pytest.raises(Refused, match="403"):
                await nobody.list(CONFIG_MAPS, namespace)

    async def test_a_wrong_token_is_refused_and_never_printed(self, light: LightCluster) -> None:
        configuration = Configuration(host=light.url, ssl_ca_cert=str(light.ca_file))
        configuration.api_key["BearerToken"] = f"Bearer {SECRET}"
        async with Client(configuration, Limits()) as stranger:
            with pytest.raises(Refused, match="401 Unauthorized") as caught:
                await stranger.get(config_map("default"))

        assert SECRET not in str(caught.value)

    async def test_a_server_that_cannot_be_trusted_is_unavailable(self, light: LightCluster) -> None:
        configuration = Configuration(host=light.url)
        async with Client(configuration, Limits()) as client:
            with pytest.raises(Unavailable, match="no answer"):
                await client.get(config_map("default"))

    async def test_the_token_of_a_pod_is_read_again_after_it_was_rotated(
        self, light: LightCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        host, _, port = light.url.removeprefix("https://").partition(":")
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
        token = tmp_path / "token"
        monkeypatch.setattr(incluster, "SERVICE_TOKEN_FILENAME", str(token))
        monkeypatch.setattr(incluster, "SERVICE_CERT_FILENAME", str(light.ca_file))
        token.write_text(SECRET)

        async with await connect(None, Limits()) as client:
            with pytest.raises(Refused, match="401"):
                await client.get(config_map("default"))
            token.write_text(light.token)
            monkeypatch.setattr(incluster.datetime, "datetime", _InAMinute)

            assert await client.list(CONFIG_MAPS, "kube-system")


class _InAMinute(incluster.datetime.datetime):
    """A clock that is a little over a minute fast."""

    @classmethod
    def now(cls, tz: object = None) -> incluster.datetime.datetime:
        return super().now() + incluster.datetime.timedelta(seconds=61)


Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def server(answer: Answer, limits: Limits | None = None) -> AsyncIterator[Client]:
    """A client of a server on loopback that answers as `answer` does."""
    runner = web.ServerRunner(web.Server(answer), shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        async with Client(Configuration(host=f"http://127.0.0.1:{port}"), limits or Limits()) as client:
            yield client
    finally:
        await runner.cleanup()


def status(code: int, reason: str, **details: object) -> Answer:
    async def answer(_: web.Request) -> web.Response:
        text = {"kind": "Status", "reason": reason, "message": SECRET, "details": details}
        return web.Response(status=code, text=json.dumps(text), content_type="application/json")

    return answer


class TestAnswers:
    async def test_what_the_time_is_a_server_says_with_any_answer(self) -> None:
        async def answer(_: web.Request) -> web.Response:
            return web.Response(status=404, text="{}", headers={"Date": "Sun, 01 Mar 2037 12:00:00 GMT"})

        async with server(answer) as client:
            await client.get(config_map("fleet"))
            now = client.clock.now()

        assert now.year == 2037

    @pytest.mark.parametrize(
        ("code", "leaf"),
        [
            (408, Unavailable),
            (410, Unavailable),
            (429, Unavailable),
            (500, Unavailable),
            (503, Unavailable),
            (504, Unavailable),
            (409, Conflict),
            (400, Refused),
            (401, Refused),
            (404, Refused),
            (405, Refused),
            (413, Refused),
            (415, Refused),
        ],
    )
    async def test_each_code_is_one_leaf_and_its_text_is_left_out(
        self, code: int, leaf: type[ApiError]
    ) -> None:
        async with server(status(code, "Because")) as client:
            with pytest.raises(leaf) as caught:
                await client.merge_patch(config_map("ns"), {})

        assert str(caught.value) == f"patch /api/v1/namespaces/ns/configmaps/a: {code} Because"

    async def test_a_refused_test_is_distinguished_from_an_invalid_object_by_its_causes(self) -> None:
        cause = {"field": "spec.replicas", "reason": "FieldValueInvalid", "message": SECRET}
        async with server(status(422, "Invalid", causes=[cause])) as client:
            with pytest.raises(Refused, match=r"422 Invalid: spec\.replicas FieldValueInvalid$"):
                await client.json_patch(config_map("ns"), [])
        async with server(status(422, "Invalid")) as client:
            with pytest.raises(Conflict):
                await client.json_patch(config_map("ns"), [])

    @pytest.mark.parametrize("code", [400, 403, 409, 422])
    @pytest.mark.parametrize(
        "words",
        [
            'admission webhook "policy.example.com" denied the request: no change on Fridays',
            "ValidatingAdmissionPolicy 'fridays' with binding 'all' denied request: no change on Fridays",
        ],
        ids=["webhook", "policy"],
    )
    def test_a_denial_is_a_refusal_in_the_policys_own_words_whatever_its_code(
        self, code: int, words: str
    ) -> None:
        text = f'deployments.apps "llm" is forbidden: {words}'
        body = {"reason": "Invalid", "message": text, "details": {"causes": [{"message": words}]}}

        error = error_for(Call("patch", "/llm"), code, body)

        assert isinstance(error, Refused)
        assert str(error) == f"patch /llm: {code} Invalid: {words}"

    def test_a_webhook_that_does_not_answer_is_named_and_asked_again(self) -> None:
        words = 'Internal error occurred: failed calling webhook "mleaderworkerset.kb.io": failed to call it'

        error = error_for(Call("patch", "/llm"), 500, {"reason": "InternalError", "message": words})

        assert isinstance(error, WebhookSilent)
        assert isinstance(error, Unavailable)
        assert str(error) == "patch /llm: 500 InternalError: webhook mleaderworkerset.kb.io does not answer"

    async def test_an_update_without_causes_is_never_a_conflict(self) -> None:
        loaded = {"metadata": {"resourceVersion": "1"}}
        async with server(status(422, "Invalid")) as client:
            with pytest.raises(Refused, match="no field named"):
                await client.put(config_map("ns"), loaded)

    async def test_an_answer_that_is_no_json_is_unavailable(self) -> None:
        async def page(_: web.Request) -> web.Response:
            return web.Response(text="<html>log in</html>")

        async with server(page) as client:
            with pytest.raises(Unavailable, match="not a JSON object"):
                await client.get(config_map("ns"))

    async def test_a_server_that_hangs_is_unavailable_in_time(self) -> None:
        async def hang(_: web.Request) -> web.Response:
            await asyncio.sleep(30)
            raise AssertionError

        async with server(hang, Limits(total_seconds=0.3)) as client:
            with pytest.raises(Unavailable, match=r"no answer within 0\.3 s"):
                await asyncio.wait_for(client.get(config_map("ns")), 5)

    async def test_a_body_that_never_ends_is_unavailable_in_time(self) -> None:
        async def drip(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse()
            await response.prepare(request)
            while True:
                await response.write(b" ")
                await asyncio.sleep(0.05)

        async with server(drip, Limits(total_seconds=0.4)) as client:
            with pytest.raises(Unavailable, match="no answer within"):
                await asyncio.wait_for(client.get(config_map("ns")), 5)

    async def test_a_connection_that_breaks_is_unavailable_and_a_write_is_sent_once(self) -> None:
        seen = []

        async def cut(request: web.Request) -> web.Response:
            seen.append(request.method)
            request.transport.abort()
            return web.Response()

        async with server(cut) as client:
            with pytest.raises(Unavailable, match="no answer: "):
                await client.json_patch(config_map("ns"), [])

        assert seen == ["PATCH"]

    async def test_nobody_listening_is_unavailable(self) -> None:
        async with Client(Configuration(host="http://127.0.0.1:1"), Limits()) as client:
            with pytest.raises(Unavailable, match="no answer: ClientConnectorError"):
                await client.get(config_map("ns"))

    async def test_a_call_ends_when_it_is_cancelled(self) -> None:
        async def hang(_: web.Request) -> web.Response:
            await asyncio.sleep(30)
            raise AssertionError

        async with server(hang) as client:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(client.get(config_map("ns")), 0.2)

    def test_nothing_is_left_open_of_a_call_that_was_cancelled(self, tmp_path: Path) -> None:
        authority = Authority(tmp_path / "pki")
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*authority.sign("server", "/CN=127.0.0.1", ["IP:127.0.0.1"]))

        async def cancelled(silent: Server) -> None:
            configuration = Configuration(host=silent.url, ssl_ca_cert=str(authority.certificate))
            async with Client(configuration, Limits()) as client:
                call = asyncio.create_task(client.get(config_map("ns")))
                while not silent.requests:
                    await asyncio.sleep(0.01)
                call.cancel()
                await asyncio.gather(call, return_exceptions=True)

        def wait(_: Request) -> Reply:
            silent.released.wait(10)
            raise HangUpError

        with Server(wait, context=context) as silent, warnings.catch_warnings(record=True) as left:
            warnings.simplefilter("always")
            asyncio.run(cancelled(silent))
            gc.collect()

        assert [str(each.message) for each in left if each.category is ResourceWarning] == []

    async def test_we_say_who_we_are(self) -> None:
        seen = {}

        async def note(request: web.Request) -> web.Response:
            seen.update(request.headers)
            return web.json_response({"kind": "ConfigMap"})

        async with server(note) as client:
            await client.get(config_map("ns"))

        assert seen["User-Agent"] == f"kvmedic/{__version__}"

    async def test_reads_keep_the_pace_and_writes_do_not_wait(self) -> None:
        async def fine(_: web.Request) -> web.Response:
            return web.json_response({"kind": "ConfigMap"})

        async with server(fine, Limits(per_second=10, burst=1)) as client:
            loop = asyncio.get_running_loop()
            started = loop.time()
            await client.get(config_map("ns"))
            read = loop.time()
            await client.merge_patch(config_map("ns"), {})
            written = loop.time()
            await client.get(config_map("ns"))

            assert written - read < 0.1
            assert loop.time() - started >= 0.19

    async def test_a_pod_without_its_token_says_so(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "1")
        monkeypatch.setattr(incluster, "SERVICE_TOKEN_FILENAME", "/nowhere/token")

        with pytest.raises(NoCluster, match="token"):
            await connect(None, Limits())


def test_a_burst_goes_at_once_and_the_rest_at_the_rate() -> None:
    pace = Pace(per_second=10, burst=3)

    waits = [pace.spend(now=100.0) for _ in range(5)]

    assert waits == pytest.approx([0, 0, 0, 0.1, 0.2])


def test_the_burst_comes_back_while_nobody_asks() -> None:
    pace = Pace(per_second=10, burst=3)
    for _ in range(3):
        pace.spend(now=100.0)

    assert [pace.spend(now=100.3) for _ in range(4)] == pytest.approx([0, 0, 0, 0.1])


def test_silence_is_not_saved_up_beyond_the_burst() -> None:
    pace = Pace(per_second=10, burst=1)
    pace.spend(now=0.0)

    assert [pace.spend(now=3600.0) for _ in range(2)] == pytest.approx([0, 0.1])


@pytest.mark.parametrize(("rate", "burst"), [(0, 1), (-1, 1), (1, 0)])
def test_a_bound_that_lets_nothing_through_is_refused(rate: float, burst: int) -> None:
    with pytest.raises(ValueError, match="need more than 0"):
        Pace(rate, burst)


@pytest.mark.parametrize("variable", ["", "http_proxy", "https_proxy", "no_proxy"])
async def test_no_netrc_is_read_for_requests(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token beside it would make aiohttp refuse to send anything."""
    netrc = tmp_path / "netrc"
    netrc.write_text(f"default login someone password {SECRET}\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    for each in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(each, raising=False)
        monkeypatch.delenv(each.upper(), raising=False)
    answer = Reply(200, json.dumps(body()).encode(), {"Content-Type": "application/json"})

    with Server(lambda _: answer) as server, Server(lambda _: answer) as proxy:
        if variable:
            monkeypatch.setenv("http_proxy", proxy.url)
            monkeypatch.setenv(variable, "127.0.0.1" if variable == "no_proxy" else proxy.url)
        for token in ("", "Bearer mine"):
            key = {"BearerToken": token} if token else {}
            configuration = Configuration(host=server.url, api_key=key)
            async with Client(configuration, Limits()) as client:
                assert await client.get(config_map("serving")) is not None

        is_proxied = variable in {"http_proxy", "https_proxy"}
        asked, idle = (proxy, server) if is_proxied else (server, proxy)
        headers = [{name.lower(): text for name, text in each.headers.items()} for each in asked.requests]
        sent = [each.get("authorization") for each in headers]

    assert (sent, idle.requests) == ([None, "Bearer mine"], [])
