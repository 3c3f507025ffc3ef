"""Who may be told, at which addresses, and signed by whose secret."""

from __future__ import annotations

import json
from typing import Any

import pytest

import outlive
from core import support
from outlive import addresses, errors, notifications
from outlive.notifications import Audience

SECRET = notifications.new_secret(b"0123456789abcdef0123456789abcdef")
OTHER = notifications.new_secret(b"fedcba9876543210fedcba9876543210")


def webhooks(**options: Any) -> outlive.Webhooks:
    return outlive.Webhooks(**{"secrets": (SECRET,), **options})


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "0.0.0.0",
        "224.0.0.1",
        "255.255.255.255",
        "192.0.2.1",
        "::1",
        "::",
        "fe80::1",
        "fe80::1%eth0",
        "fc00::1",
        "ff02::1",
        "2001:db8::1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "64:ff9b::a00:1",
        "2002:0a00:0001::",
        "2002:7f00:0001::1",
        "localhost",
        "",
    ],
)
def test_private_local_and_made_up_addresses_are_not_sent_to(address: str) -> None:
    assert not addresses.allowed(address, ())


@pytest.mark.parametrize("address", ["93.184.216.34", "2606:2800:220:1::1", "::ffff:93.184.216.34"])
def test_public_addresses_are_sent_to(address: str) -> None:
    assert addresses.allowed(address, ())


def test_networks_that_the_operator_names_are_sent_to_and_no_others() -> None:
    ours = addresses.networks(("10.1.0.0/16", "fc00::/64"))
    assert addresses.allowed("10.1.2.3", ours)
    assert addresses.allowed("::ffff:10.1.2.3", ours)
    assert addresses.allowed("fc00::9", ours)
    assert not addresses.allowed("10.2.2.3", ours)
    with pytest.raises(errors.Misconfigured, match="is no network"):
        addresses.networks(("10.1.2.3/8",))


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("ftp://a.example/", "neither https nor http"),
        ("http://a.example/", "must begin with https"),
        ("https:///hook", "names no host"),
        ("https://user:password@a.example/", "holds a user or a password"),
        ("https://a.example/#part", "has a fragment"),
        ("https://a.example/a b", "printable ASCII"),
        ("https://a.example/\r\nhost: b", "printable ASCII"),
        ("https://ä.example/", "printable ASCII"),
        ("https://a.example:99999/", "no URL to send to"),
        ("https://[::1/", "no URL to send to"),
        ("https://10.0.0.1/hook", "names an address that nothing is sent to"),
        ("https://[::ffff:127.0.0.1]/hook", "names an address that nothing is sent to"),
        ("https://a.example/" + "x" * 2048, "printable ASCII"),
        (7, "printable ASCII"),
    ],
)
def test_an_address_that_could_never_be_sent_to_is_refused_before_a_run_is_made(url: Any, why: str) -> None:
    with pytest.raises(errors.InvalidInput, match=why) as refused:
        webhooks().notify("tenant", "agent", url)
    assert refused.value.field == "webhook"


def told(given: str | None) -> list[tuple[str, str, str]]:
    return [(each["receiver"], each["url"], each["audience"]) for each in json.loads(given or "[]")]


def test_a_run_tells_the_service_its_agents_receiver_and_whom_its_request_names_each_once() -> None:
    hooks = webhooks(url="https://ops.example/all", agents={"booking": "https://ops.example/booking"})
    ops = " https://ops.example:443"
    assert told(hooks.notify("t", "other", None)) == [(ops, "https://ops.example/all", "service")]
    assert told(hooks.notify("t", "booking", "https://own.example:8443/x?token=1")) == [
        (ops, "https://ops.example/all", "service"),
        (ops, "https://ops.example/booking", "service"),
        ("t https://own.example:8443", "https://own.example:8443/x?token=1", "tenant"),
    ]
    assert len(told(hooks.notify("t", "other", "https://ops.example/all"))) == 1
    [_, shouted] = told(hooks.notify("t", "other", "HTTPS://OWN.example/X"))
    assert shouted == ("t https://own.example:443", "https://OWN.example/X", "tenant")
    assert webhooks().notify("t", "other", None) is None


def test_each_tenant_has_a_secret_of_its_own_and_each_secret_of_the_service_makes_one() -> None:
    hooks = webhooks(secrets=(SECRET, OTHER))
    mine, yours = hooks.secrets_of("me", Audience.TENANT), hooks.secrets_of("you", Audience.TENANT)
    service = hooks.secrets_of("me", Audience.SERVICE)
    assert len({*mine, *yours, *service, SECRET, OTHER}) == 8
    assert service == hooks.secrets_of("you", Audience.SERVICE)
    assert hooks.secrets_of("", Audience.TENANT) != service
    assert "0123" not in repr(hooks)
    assert SECRET not in repr(hooks)


@pytest.mark.parametrize("secret", ["", "whsec_", "whsec_c2hvcnQ=", "c2hvcnQ=", "whsec_!!", SECRET[6:]])
def test_what_is_no_secret_is_refused_at_once(secret: str) -> None:
    with pytest.raises(errors.Misconfigured, match="webhook secret"):
        webhooks(secrets=(secret,))


def test_a_service_refuses_to_start_with_a_receiver_that_it_could_not_reach() -> None:
    with pytest.raises(errors.Misconfigured, match="must begin with https"):
        webhooks(url="http://ops.example/")
    with pytest.raises(errors.Misconfigured, match="need a secret"):
        webhooks(secrets=())
    with pytest.raises(errors.Misconfigured, match="lets nothing be sent"):
        webhooks(at_once=0)
    webhooks(url="http://127.0.0.1:9/", networks=("127.0.0.0/8",))


async def test_a_service_without_webhooks_says_so(sqlite_url: str) -> None:
    async with support.serving(sqlite_url, quick) as served:
        with pytest.raises(errors.InvalidInput, match="sends no webhooks") as refused:
            await served.submit("agent", webhook="https://a.example/")
        assert refused.value.field == "webhook"
        assert await served.runs() == []


@support.job()
async def quick(context: outlive.Context) -> Any:
    """Ends at once."""
    yield "done"
