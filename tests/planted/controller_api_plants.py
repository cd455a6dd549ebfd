"""Bugs of a controller in a node: hosting, rights, and answers to Kafka's requests."""

from __future__ import annotations

from typing import Final

from tests.planted.plant import Plant

APIS: Final = "state/raftlog_state/controller_apis"
HOSTED: Final = f"{APIS}/hosted_controller.py"
HOSTING: Final = "tests/state/controller_apis/test_hosting.py"
ADMIN: Final = "tests/state/controller_apis/test_admin_requests.py"
BROKERS: Final = "tests/state/controller_apis/test_broker_requests.py"
STEPS: Final = "tests/state/controller_apis/test_bounded_steps.py"
REGISTRATION: Final = f"{APIS}/registration.py"
REGISTRATIONS: Final = "tests/state/controller_apis/test_registration.py"
RIGHTS: Final = "tests/state/controller_apis/test_rights.py"

CONTROLLER_API_PLANTS: Final = (
    Plant(
        bug="controller node: an empty log gets no bootstrap records",
        path=HOSTED,
        old="if not self.controller.is_log_empty:",
        new="if True:",
        tests=(HOSTING,),
    ),
    Plant(
        bug="controller node: a log without a metadata.version gets bootstrap records",
        path=HOSTED,
        old="if not self.controller.is_log_empty:",
        new="if self.controller.state.metadata_version is not None:",
        tests=(HOSTING,),
    ),
    Plant(
        bug="controller node: clients may append to the log beside the controller",
        path="state/raftlog_state/cli/controller_node.py",
        old="        owns_log=True,\n",
        new="",
        tests=(HOSTING,),
    ),
    Plant(
        bug="controller node: a request is answered before its records are committed",
        path=HOSTED,
        old="                await done\n",
        new="                pass\n",
        tests=(HOSTING,),
    ),
    Plant(
        bug="controller node: a large request holds the event loop",
        path=HOSTED,
        old="            if found:\n                await asyncio.sleep(0)\n",
        new="",
        tests=(STEPS,),
    ),
    Plant(
        bug="controller node: a step compares all ACLs with all filters",
        path="state/raftlog_state/controller/acls.py",
        old="size = COMPARISONS_PER_STEP // len(open_numbers)",
        new="size = COMPARISONS_PER_STEP",
        tests=(STEPS,),
    ),
    Plant(
        bug="controller node: a large response is encoded on the event loop",
        path="connector/raftlog/node/apis/client_apis.py",
        old="await self._in_executor(request, write) if handler.is_large else write()",
        new="write()",
        tests=(STEPS,),
    ),
    Plant(
        bug="controller node: the registration of an earlier process stays",
        path=REGISTRATION,
        old="is_registered = incarnation_id == uuid_text(self._request.incarnation_id)",
        new="is_registered = incarnation_id is not None",
        tests=(REGISTRATIONS,),
    ),
    Plant(
        bug="controller node: a refused registration is not sent again",
        path=REGISTRATION,
        old="        if response.error_code is ErrorCode.none:\n",
        new="        if True:\n",
        tests=(REGISTRATIONS,),
    ),
    Plant(
        bug="controller node: it does not register itself",
        path="state/raftlog_state/cli/controller_node.py",
        old="    loader.install(registration)\n",
        new="",
        tests=(REGISTRATIONS,),
    ),
    Plant(
        bug="controller node: a standby does not forward the requests of clients",
        path=f"{APIS}/handlers.py",
        old="                if forward is None:\n",
        new="                if True:\n",
        tests=(HOSTING,),
    ),
    Plant(
        bug="controller node: a forwarded request whose connection is lost is not sent again",
        path=f"{APIS}/envelope.py",
        old="        with contextlib.suppress(OSError, EOFError):\n",
        new="        with contextlib.nullcontext():\n",
        tests=(HOSTING,),
    ),
    Plant(
        bug="controller node: a client gets NOT_CONTROLLER for a request that was forwarded",
        path=f"{APIS}/envelope.py",
        old="if response.error_code is not ErrorCode.not_controller:",
        new="if True:",
        tests=(HOSTING,),
    ),
    Plant(
        bug="controller node: a standby forwards on its listener for voters",
        path="state/raftlog_state/cli/controller_node.py",
        old="api.clients is not None and Listener.CLIENTS in request.principal.listener",
        new="api.clients is not None",
        tests=(HOSTING,),
    ),
    Plant(
        bug="controller node: clients see that they may write to the log",
        path="connector/raftlog/node/apis/metadata_cache.py",
        old="        hides_write = self.is_read_only and",
        new="        hides_write = False and",
        tests=(
            "tests/node/apis/test_queries.py",
            HOSTING,
        ),
    ),
    Plant(
        bug="controller node: records that are only to be validated are written",
        path=HOSTED,
        old="            validate if validate_only else operation,\n",
        new="            operation,\n",
        tests=(ADMIN,),
    ),
    Plant(
        bug="controller node: topics are created without the right",
        path=f"{APIS}/topics.py",
        old="elif not (may_create_all or may(Operation.CREATE, _topic_resource(topic_name))):",
        new="elif False:",
        tests=(RIGHTS,),
    ),
    Plant(
        bug="controller node: anyone may forward requests in an envelope",
        path=f"{APIS}/envelope.py",
        old="    if not request.principal.is_node:",
        new="    if False:",
        tests=(RIGHTS,),
    ),
    Plant(
        bug="controller node: a forwarded request has the rights of the broker",
        path="connector/raftlog/node/access.py",
        old="rights = (access.rights_of(name) if is_known else sender.rights) & ~Rights.VOTE",
        new="rights = sender.rights",
        tests=(BROKERS,),
    ),
    Plant(
        bug="controller node: a topic that a request names twice is deleted",
        path=f"{APIS}/topics.py",
        old="if isinstance(at, TopicRow) and by_id[at.topic_id] > 1:",
        new="if False:",
        tests=(ADMIN,),
    ),
    Plant(
        bug="controller node: a secret config is described",
        path=f"{APIS}/configs.py",
        old="        shown = None if is_secret_config(kind, key) else value\n",
        new="        shown = value\n",
        tests=(ADMIN,),
    ),
    Plant(
        bug="controller node: a broker forwards requests of other brokers",
        path=f"{APIS}/envelope.py",
        old="receive_request(body.request_data, Listener.CLIENTS, _APIS)",
        new="receive_request(body.request_data, Listener.VOTERS, _APIS)",
        tests=(BROKERS,),
    ),
    Plant(
        bug="controller node: a change through a standby counts as one that a broker has validated",
        path=f"{APIS}/envelope.py",
        old="            is_from_broker=not user.is_from_standby,\n",
        new="",
        tests=(BROKERS,),
    ),
    Plant(
        bug="controller node: a delegation token renews delegation tokens",
        path=f"{APIS}/envelope.py",
        old="        if user.is_token and header.api_key in _TOKEN_APIS:\n",
        new="        if False:\n",
        tests=(BROKERS,),
    ),
    Plant(
        bug="controller node: all reassignments are listed in one step",
        path=f"{APIS}/partitions.py",
        old="wanted[start : start + ROWS_PER_STEP])\n            for start in "
        "range(0, len(wanted), ROWS_PER_STEP)",
        new="wanted)\n            for start in range(1)",
        tests=(STEPS,),
    ),
    Plant(
        bug="controller node: the sessions of brokers are not checked",
        path=HOSTED,
        old='                await self._repeat("maybeFenceStaleBroker", self._fence)\n',
        new="",
        tests=(BROKERS,),
    ),
    Plant(
        bug="a client retries appends that a node with a controller does not serve",
        path="connector/raftlog/client/remote/sender.py",
        old="        if not leader.connection.serves(ApiKey.PRODUCE):\n",
        new="        if not leader.connection.serves(ApiKey.API_VERSIONS):\n",
        tests=(
            "tests/state/controller_apis/test_stock_admin_clients.py"
            "::test_an_append_of_a_client_is_refused_with_the_reason",
        ),
    ),
)
