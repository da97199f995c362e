"""What a master and a follower say before the log is sent, and the questions that a follower may ask at any time.

Frames are handled as they come, without waiting, so that each is checked against what the one before it allows.
"""

from collections import deque
from collections.abc import Callable

from penstock_replicate.master.parts import MasterParts
from penstock_replicate.master.peer_link import PeerLink
from penstock_replicate.wire.decoding import FrameDecoder
from penstock_replicate.wire.frames import (
    WIRE_VERSION,
    Ack,
    AnyFrame,
    Auth,
    DigestQuestion,
    Follow,
    FrameType,
    Hello,
    RefusalCode,
    Refused,
    encode,
)
from penstock_replicate.wire.limits import NAME_MAX, WireViolation
from penstock_replicate.wire.plain import encode_greeting
from penstock_replicate.wire.proof import is_proof, make_nonce, prove

_ASKING = frozenset({FrameType.FOLLOW, FrameType.DIGEST})
_FOLLOWING = frozenset({FrameType.ACK, FrameType.DIGEST})
# Questions that are not answered yet; each may make the master read 64 MiB.
_QUESTIONS_MAX = 4


class Handshake:
    """The frames of one follower. Used in the loop's thread only.

    Attributes:
        theirs: what the follower has said of itself.
        follow: what it asks for, once it has.
    """

    def __init__(self, parts: MasterParts, link: PeerLink, on_ack: Callable[[Ack], None]) -> None:
        self._parts, self._link, self._on_ack = parts, link, on_ack
        self._decoder = FrameDecoder(frozenset({FrameType.HELLO}))
        self._nonce = make_nonce()
        self._questions: deque[DigestQuestion] = deque()
        self.theirs: Hello | None = None
        self.follow: Follow | None = None

    def hello(self) -> Hello:
        """Return what the master says of itself now."""
        log = self._parts.log
        # In this order, so that the first is not greater.
        low, high = log.min_offset, log.visible_offset
        return Hello(
            history=self._parts.history, epochs=self._parts.epochs, segment_bytes=log.segment_bytes, min_offset=min(low, high),
            end_offset=high, store=log.root.name[:NAME_MAX], nonce=self._nonce, needs_proof=self._parts.secret is not None,
        )  # fmt: skip

    def greet(self) -> None:
        """Answer the first report, and handle what comes."""
        self._link.write(encode_greeting(encode(self.hello())))
        self._link.handle_by(self._take)

    def begin(self) -> None:
        """The follower is sent the log from now on."""
        self._decoder.allowed = _FOLLOWING

    def only_digests(self) -> None:
        """The follower is refused, and may ask where the logs part."""
        self._decoder.allowed = frozenset({FrameType.DIGEST})

    @property
    def question(self) -> DigestQuestion | None:
        """The oldest question that is not answered."""
        return self._questions[0] if self._questions else None

    def answered(self) -> None:
        """The oldest question is answered."""
        self._questions.popleft()

    def _take(self, data: bytes) -> None:
        for frame in self._decoder.frames(data):
            if isinstance(frame, Ack):
                self._on_ack(frame)
            else:
                self._take_frame(frame)
                self._link.bell.ring()
            if self._link.reason is not None:
                return

    def _take_frame(self, frame: AnyFrame) -> None:
        if isinstance(frame, Hello):
            self._take_hello(frame)
        elif isinstance(frame, Auth):
            self._take_proof(frame)
        elif isinstance(frame, Follow):
            self.follow = frame
            # Nothing else before the answer; an acknowledgement would be one of nothing.
            self._decoder.allowed = frozenset({FrameType.DIGEST})
        elif isinstance(frame, DigestQuestion):
            if len(self._questions) >= _QUESTIONS_MAX:
                raise WireViolation(f"more than {_QUESTIONS_MAX} questions at once")
            self._questions.append(frame)

    def _take_hello(self, theirs: Hello) -> None:
        self.theirs = theirs
        if theirs.version != WIRE_VERSION:
            text = f"the protocol has version {WIRE_VERSION} here and {theirs.version} there; install the same version of Penstock"
            return self._refuse(RefusalCode.VERSION, text)
        if self._parts.secret is not None:
            self._decoder.allowed = frozenset({FrameType.AUTH})
        elif theirs.needs_proof:
            text = "the follower has a secret_file, and this master has none; give both the same one, or none"
            return self._refuse(RefusalCode.SECRET, text)
        else:
            self._decoder.allowed = _ASKING
        return None

    def _take_proof(self, auth: Auth) -> None:
        assert self.theirs is not None
        assert self._parts.secret is not None
        secret, theirs = self._parts.secret, self.theirs.nonce
        if not is_proof(auth.proof, secret, "follower", self._nonce, theirs):
            text = "the follower's secret is another one than this master's; give both the same secret_file"
            return self._refuse(RefusalCode.SECRET, text)
        self._link.write(encode(Auth(prove(secret, "master", self._nonce, theirs))))
        self._decoder.allowed = _ASKING
        return None

    def _refuse(self, code: RefusalCode, text: str) -> None:
        self._link.end_after(encode(Refused(code, text)), text)
