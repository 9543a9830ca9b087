"""Why a report did not arrive, and what to do about it: the texts of the client's log lines."""

from __future__ import annotations

import http.client
import logging
import socket
import ssl

#: Remedies for answers of a collector, by status.
_REMEDIES = {
    401: "EADT_TOKEN_FILE names a file with the token",
    403: "EADT_WORKLOAD is NAMESPACE/NAME, in a namespace of the token",
}
#: Remedies for certificates, by the code of OpenSSL.
_CERTIFICATE_REMEDIES = {
    9: "this machine's clock is behind, or the certificate is for later",
    10: "it has expired: renew it, or set this machine's clock",
    62: "EADT_URL names the host as the certificate does",
    64: "EADT_URL names the host as the certificate does",
}
#: Remedy where something else than a collector answers, or nothing.
ELSEWHERE = "EADT_URL is the collector's address, as `eadt up` prints it (port 9477 unless set otherwise)"


class VisibleText(logging.Filter):
    """Writes what cannot be shown in a log line as escapes: names and answers may come from anywhere, and a terminal obeys them."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Replaces the record's message if it has such characters."""
        message = record.getMessage()
        if not message.isprintable():
            record.msg, record.args = "".join(map(_visible, message)), None
        return True


def _visible(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode("ascii")


def explain(error: BaseException) -> str:
    """Returns what an error of a connection means for who set it up; an error of another kind is returned as it reads."""
    text = "".join(character if character.isprintable() else " " for character in str(error)).strip() or type(error).__name__
    if isinstance(error, ssl.SSLCertVerificationError):
        remedy = _CERTIFICATE_REMEDIES.get(error.verify_code, "EADT_CA_FILE names the authority's certificate")
        return f"the collector's certificate is not trusted ({error.verify_message}): {remedy}"
    if isinstance(error, ssl.SSLError):
        # Only a server without TLS: the remedy would send a token in clear text.
        is_plain = error.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE")
        return f"the server does not speak TLS as expected ({text})" + (": without TLS, EADT_URL begins with http://" if is_plain else "")
    if isinstance(error, socket.gaierror):
        return f"the host is not known ({text}): {ELSEWHERE}"
    if isinstance(error, ConnectionRefusedError):
        return f"nothing listens there: start `eadt up`; {ELSEWHERE}"
    if isinstance(error, TimeoutError):
        return "the collector does not answer in time"
    if isinstance(error, http.client.BadStatusLine) and not isinstance(error, http.client.RemoteDisconnected):
        return "the server does not answer in HTTP: if it uses TLS, EADT_URL begins with https://"
    return text


def explain_answer(status: int, text: str) -> str:
    """Returns an answer of a server with its remedy; ``text`` is empty if it gave no reason."""
    # A collector takes reports with 202, and refuses in JSON. A proxy in front of it may answer as it likes for a collector that is away.
    is_page = text.lstrip().startswith("<")
    if (not text and status in (404, 405)) or (is_page and status in (400, 404, 405)) or 200 <= status < 300:
        return f"{status}, which is no collector's answer: {ELSEWHERE}"
    remedy = _REMEDIES.get(status)
    if status == 422 and "namespace/name" in text:
        remedy = "set EADT_WORKLOAD"
    reason = f"{status}: {text}" if text and not is_page else str(status)
    return reason + (f"; {remedy}" if remedy else "")
