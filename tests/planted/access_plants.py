"""Bugs of a node's listeners: authentication, authorization and the identity of directories."""

from __future__ import annotations

from typing import Final

from tests.planted.plant import Plant

NODE: Final = "connector/raftlog/node"
ACCESS: Final = "tests/node/config/test_access.py"
SASL_PORT: Final = "tests/node/test_sasl_port.py"
REVOCATION: Final = "tests/node/config/test_revocation.py"
TLS: Final = "tests/node/config/test_node_tls.py"
CONFIG: Final = "tests/node/config/test_node_config.py"
FORMATTING: Final = "tests/node/config/test_formatting.py"
MATRIX: Final = "tests/node/test_access_matrix.py"
FORWARDED: Final = "tests/state/controller_apis/test_broker_requests.py"
RIGHTS: Final = "tests/state/controller_apis/test_rights.py"
EXPIRY: Final = "tests/node/test_certificate_expiry.py"
PUBLISHER: Final = "state/raftlog_state/publishing/access_publisher.py"
PUBLISHED: Final = "tests/state/publishing/test_access_publisher.py"

ACCESS_PLANTS: Final = (
    Plant(
        bug="a node's certificate may speak for every node",
        path=f"{NODE}/access.py",
        old="self.node_id in (None, node_id)",
        new="True",
        tests=(MATRIX,),
    ),
    Plant(
        bug="connections outlive the CA that verified them",
        path=f"{NODE}/process.py",
        old="if tls is not None and certificate and not settings.trusts(listener, tls.context):",
        new="if tls is not None and certificate and tls.context is None:",
        tests=(
            "tests/node/test_access_reload.py"
            "::test_a_removed_ca_ends_the_connections_that_it_may_have_verified",
        ),
    ),
    Plant(
        bug="a client does not read its revocation lists again",
        path="connector/raftlog/client/remote/tls.py",
        old="        if versions != self._versions:\n",
        new="        if not versions:\n",
        tests=(
            "tests/node/config/test_revocation.py"
            "::test_a_client_reads_its_files_again_for_a_new_connection",
        ),
    ),
    Plant(
        bug="a node does not warn of a revocation list that expires",
        path=f"{NODE}/certificates.py",
        old="                found += _list_expiries(name, tls.crl)\n",
        new="                pass\n",
        tests=("tests/node/test_certificate_expiry.py",),
    ),
    Plant(
        bug="revoked certificates are accepted",
        path=f"{NODE}/tls.py",
        old="    context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_CHAIN",
        new="    context.verify_flags |= ssl.VerifyFlags.VERIFY_DEFAULT",
        tests=(REVOCATION,),
    ),
    Plant(
        bug="connections outlive the revocation of their certificate",
        path=f"{NODE}/settings.py",
        old=" and self._revoked[context] <= self._revoked[verified]",
        new="",
        tests=(REVOCATION,),
    ),
    Plant(
        bug="connections outlive their certificate",
        path=f"{NODE}/server.py",
        old="elif connection.has_expired(self.wall_s()):",
        new="elif False:",
        tests=("tests/node/test_tls_port.py",),
    ),
    Plant(
        bug="connections to nodes outlive the certificate of the node",
        path=f"{NODE}/network_channel.py",
        old="return connection.is_open and not connection.has_expired(self.wall_s())",
        new="return connection.is_open",
        tests=("tests/node/test_network_channel.py",),
    ),
    Plant(
        bug="an error in the configuration reloads the other files",
        path=f"{NODE}/process.py",
        old="        found = (None, None) if config.path is None else reload_access(config)\n",
        new="        settings.reload()\n"
        "        found = (None, None) if config.path is None else reload_access(config)\n",
        tests=("tests/node/test_reloaded_settings.py",),
    ),
    Plant(
        bug="the common name is used where no mapping rule matches",
        path=f"{NODE}/access.py",
        old="_principal(certificate) if rules is None else _mapped(rules, certificate_der)",
        new="_principal(certificate) if rules is None else (\n"
        "            _mapped(rules, certificate_der) or _principal(certificate)\n        )",
        tests=("tests/node/config/test_principal_mapping.py",),
    ),
    Plant(
        bug="an encrypted value can be moved to another key",
        path="connector/raftlog/client/encryption.py",
        old='b"\\0" if key is None else b"\\1" + key',
        new='b"\\0"',
        tests=("tests/client/test_encryption.py",),
    ),
    Plant(
        bug="a value of an unknown key is read as deleted",
        path="connector/raftlog/client/encryption.py",
        old="        except EncryptionKeyDeletedError:\n            return None\n        if len",
        new="        except EncryptionKeyError:\n            return None\n        if len",
        tests=("tests/client/test_encryption.py",),
    ),
    Plant(
        bug="a certificate precedes the user of SASL",
        path=f"{NODE}/access.py",
        old='        name = user or ""\n',
        new='        name = _principal(certificate) if certificate else user or ""\n',
        tests=(MATRIX,),
    ),
    Plant(
        bug="a listener with SASL and without TLS gives every right",
        path=f"{NODE}/access.py",
        old="    if listener.tls is None and listener.sasl is None:",
        new="    if listener.tls is None:",
        tests=(SASL_PORT,),
    ),
    Plant(
        bug="requests are served before SASL authentication",
        path=f"{NODE}/sasl.py",
        old="        if self._session is None:\n            raise SaslStateError",
        new="        if False:\n            raise SaslStateError",
        tests=(SASL_PORT,),
    ),
    Plant(
        bug="a user authenticates again as another one",
        path=f"{NODE}/sasl.py",
        old="if self._session is not None and self._session[1] != session[1]:",
        new="if False:",
        tests=(SASL_PORT,),
    ),
    Plant(
        bug="connections outlive the password that they used",
        path=f"{NODE}/sasl.py",
        old="return name if self._users().find(mechanism, name) == credential else None",
        new="return name",
        tests=(SASL_PORT,),
    ),
    Plant(
        bug="the challenge of an unknown user changes",
        path=f"{NODE}/sasl.py",
        old='salt = hmac.digest(self.challenge_key, text, "sha256")',
        new="salt = secrets.token_bytes(32)",
        tests=(SASL_PORT,),
    ),
    Plant(
        bug="a proof of SCRAM is not compared",
        path="connector/raftlog/wire/sasl.py",
        old="    if not hmac.compare_digest(stored_key, credential.stored_key):",
        new="    if False:",
        tests=("tests/wire/test_sasl.py",),
    ),
    Plant(
        bug="any authenticated client may send replica requests",
        path=f"{NODE}/access.py",
        old="return self.is_node and self.node_id in (None, node_id)",
        new="return self.node_id in (None, node_id)",
        tests=(MATRIX,),
    ),
    Plant(
        bug="any authenticated client may change voters",
        path=f"{NODE}/raft_request_handler.py",
        old="return principal.may(Operation.ALTER)",
        new="return True",
        tests=(MATRIX,),
    ),
    Plant(
        bug="a node votes on the listener for clients",
        path=f"{NODE}/access.py",
        old=" if Listener.VOTERS in listener.listener else None",
        new="",
        tests=(ACCESS, MATRIX),
    ),
    Plant(
        bug="any principal may be a replica on the listener for clients",
        path=f"{NODE}/access.py",
        old="    if Listener.VOTERS in listener:\n",
        new="    if listener:\n",
        tests=(ACCESS, MATRIX),
    ),
    Plant(
        bug="a certificate of two nodes identifies one of them",
        path=f"{NODE}/access.py",
        old="return proven.pop() if len(proven) == 1 else None",
        new="return proven.pop() if proven else None",
        tests=(ACCESS, MATRIX),
    ),
    Plant(
        bug="a client's certificate is accepted on the listener for voters",
        path=f"{NODE}/access.py",
        old="        rights = Rights.NONE  # a client's",
        new="        pass  # a client's",
        tests=(ACCESS, MATRIX),
    ),
    Plant(
        bug="a star matches clients without a certificate",
        path=f"{NODE}/access.py",
        old="(name == ANONYMOUS and pattern != ANONYMOUS)",
        new="False",
        tests=(ACCESS,),
    ),
    Plant(
        bug="a star matches clients that have not authenticated to a broker",
        path=f"{NODE}/access.py",
        old="    if name == KAFKA_ANONYMOUS:",
        new="    if False:",
        tests=(FORWARDED,),
    ),
    Plant(
        bug="a caller needs no certificate",
        path=f"{NODE}/tls.py",
        old="ssl.CERT_REQUIRED if tls.is_certificate_required else ssl.CERT_OPTIONAL",
        new="ssl.CERT_OPTIONAL",
        tests=(TLS, MATRIX),
    ),
    Plant(
        bug="a node calls any node with a certificate of the CA",
        path=f"{NODE}/tls.py",
        old="            if reason is not None:\n                raise",
        new="            if False:\n                raise",
        tests=(TLS,),
    ),
    Plant(
        bug="another node's certificate identifies the called node",
        path=f"{NODE}/tls.py",
        old="(proven == node_id or node_id < 0)",
        new="True",
        tests=(TLS,),
    ),
    Plant(
        bug="unreadable certificates leave a node without any",
        path=f"{NODE}/settings.py",
        old="        before = self.for_peer(-1)\n        self._loaded = self._load(",
        new="        before = self.for_peer(-1)\n"
        "        self._loaded = _Loaded(self.access, self.quotas)\n"
        "        self._loaded = self._load(",
        tests=(TLS,),
    ),
    Plant(
        bug="a node listens on public addresses without TLS",
        path=f"{NODE}/config.py",
        old="        if listener.tls is None and not is_loopback(listener.host):\n",
        new="        if False:\n",
        tests=(CONFIG,),
    ),
    Plant(
        bug="an unknown configuration key is accepted",
        path=f"{NODE}/config_table.py",
        old="            if key not in self._read_keys",
        new="            if False",
        tests=(CONFIG,),
    ),
    Plant(
        bug="meta.properties is written before the voters",
        path=f"{NODE}/formatting.py",
        old="            if initial_voters is not None:\n                _write_bootstrap",
        new="            _write_meta(files, config, cluster_id, directory_id, now_ms)\n"
        "            if initial_voters is not None:\n                _write_bootstrap",
        tests=(FORMATTING,),
    ),
    Plant(
        bug="formatting overwrites an existing directory",
        path=f"{NODE}/formatting.py",
        old="    if strange:\n",
        new="    if False:\n",
        tests=(FORMATTING,),
    ),
    Plant(
        bug="a node whose log was removed starts with an empty one",
        path=f"{NODE}/formatting.py",
        old="    if wanted not in logs:\n",
        new="    if wanted not in logs and logs:\n",
        tests=(FORMATTING,),
    ),
    Plant(
        bug="an ACL that allows has precedence over one that denies",
        path=PUBLISHER,
        old="                return False\n        return found\n",
        new="                found = found or False\n        return found\n",
        tests=(PUBLISHED,),
    ),
    Plant(
        bug="ACLs of prefixes are those of whole names",
        path=PUBLISHER,
        old="            if length <= len(name):\n",
        new="            if length == len(name):\n",
        tests=(PUBLISHED,),
    ),
    Plant(
        bug="ACLs are applied before all that are committed are known",
        path=PUBLISHER,
        old="committed is not None and self._image.offset + 1 >= committed",
        new="True",
        tests=(PUBLISHED,),
    ),
    Plant(
        bug="a node that lags applies the ACLs of the end of its own log",
        path="connector/raftlog/quorum/following.py",
        old="        state.note_committed(response.high_watermark)\n",
        new="        state.note_committed(min(response.high_watermark or 0, 6))\n",
        tests=("tests/quorum/test_high_watermark.py",),
    ),
    Plant(
        bug="revoked rights stay if the metadata cannot be replayed",
        path=PUBLISHER,
        old="and self._is_complete and not self._has_failed()",
        new="and self._is_complete",
        tests=(PUBLISHED,),
    ),
    Plant(
        bug="a removed ACL stays in the index",
        path=PUBLISHER,
        old="        del rows[row.acl_id]\n",
        new="        rows.get(row.acl_id)\n",
        tests=(PUBLISHED,),
    ),
    Plant(
        bug="an ACL denies a super user",
        path=f"{NODE}/access.py",
        old="        if by_table and self._is_super_user:\n",
        new="        if False:\n",
        tests=(RIGHTS,),
    ),
    Plant(
        bug="a request that a standby forwards has the rights of an unknown client",
        path=f"{NODE}/access.py",
        old="is_known = are_clients_known or sender.name != ANONYMOUS",
        new="is_known = sender.name != ANONYMOUS",
        tests=(FORWARDED,),
    ),
    Plant(
        bug="connections outlive the password of their user in the log",
        path=PUBLISHER,
        old="        if credentials is not self._credentials:\n",
        new="        if False:\n",
        tests=(PUBLISHED,),
    ),
    Plant(
        bug="only the first certificate of a file is watched for its expiry",
        path=f"{NODE}/certificates.py",
        old="for text in _PEM.findall(file.read()):",
        new="for text in _PEM.findall(file.read())[:1]:",
        tests=(EXPIRY,),
    ),
    Plant(
        bug="a certificate is reported at its first threshold only",
        path=f"{NODE}/certificates.py",
        old="            if passed > logged.get(one, 0):\n",
        new="            if passed and one not in logged:\n",
        tests=(EXPIRY,),
    ),
    Plant(
        bug="denied changes of peers without rights fill the audit log",
        path=f"{NODE}/audit.py",
        old="if arguments is not None and principal.may_change:",
        new="if arguments is not None:",
        tests=("tests/node/test_audit.py",),
    ),
    Plant(
        bug="clients with rights by ACLs lock voters out of their listener",
        path=f"{NODE}/connection_quotas.py",
        old="connection.listener == Listener.VOTERS and bool(principal.rights)",
        new="connection.listener == Listener.VOTERS",
        tests=("tests/node/test_connection_quotas.py",),
    ),
    Plant(
        bug="connections of clients use up the rate of a voter on their host",
        path=f"{NODE}/connection_quotas.py",
        old="        key = limit, address  #",
        new="        key = '', address  #",
        tests=("tests/node/test_connection_quotas.py",),
    ),
)
