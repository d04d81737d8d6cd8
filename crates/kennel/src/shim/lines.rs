//! Bytes in, lines out; and lines waiting to be written.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use kennel_core::hello::VOID;
use kennel_core::message::{Line, Owned, Scan};
use kennel_sys::memory;
use rustix::buffer::spare_capacity;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use super::spare;

/// There is room for this much at least whenever something is read.
pub(crate) const CHUNK: usize = 64 * 1024;
/// What is read at once where something may come along with it.
pub(crate) const SHORT: usize = 4096;
/// What a buffer may keep for the next time: what a 32 MB line needed is given back.
const KEPT: usize = 2 * CHUNK;
/// A line that is as long as this and has not ended gets [`AMPLE`] room at once: nothing is used of that before it
/// is filled, and it is not moved from place to place.
const LONG: usize = 2 * CHUNK;
const AMPLE: usize = 64 << 20;
/// Room in front of such a line: whoever gives it another id moves what is before that, and not all the rest.
const ROOM: usize = 64;

/// Cuts what arrives into lines.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    bytes: Vec<u8>,
    /// Where the line begins that was taken last.
    last: usize,
    /// Lines before this were taken.
    taken: usize,
    /// Up to here there is no further newline: what was searched is not searched again.
    searched: usize,
    /// This much in front is no line's.
    room: usize,
    /// What is known of a line that did not come at once.
    scan: Option<Box<Scan>>,
    /// That line was taken.
    scan_is_old: bool,
}

impl Inbox {
    /// One that has read so much of a line already.
    pub(crate) fn with(bytes: Vec<u8>) -> Inbox {
        Inbox {
            bytes,
            ..Inbox::default()
        }
    }

    /// What was read and is no whole line yet.
    pub(crate) fn unfinished(&self) -> &[u8] {
        &self.bytes[self.taken..]
    }

    /// Reads what is there, once.
    pub(crate) fn read(&mut self, from: impl AsFd) -> io::Result<usize> {
        Ok(rustix::io::read(from, spare_capacity(self.room()))?)
    }

    /// The same of a socket. The kernel asks less of whoever reads it as one than of whoever reads it as a file.
    pub(crate) fn receive(&mut self, from: impl AsFd) -> io::Result<usize> {
        let room = spare_capacity(self.room());
        let (_, count) = rustix::net::recv(from, room, RecvFlags::empty())?;
        Ok(count)
    }

    /// The same, [a little](SHORT), with the descriptors that come along.
    pub(crate) fn receive_with(
        &mut self,
        from: impl AsFd,
        along: &mut Vec<OwnedFd>,
    ) -> io::Result<usize> {
        let mut bytes = [0; SHORT];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut came = RecvAncillaryBuffer::new(&mut space);
        let mut room = [IoSliceMut::new(&mut bytes)];
        let received = recvmsg(from, &mut room, &mut came, RecvFlags::CMSG_CLOEXEC)?;
        for message in came.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                along.extend(descriptors);
            }
        }
        self.room().extend_from_slice(&bytes[..received.bytes]);
        Ok(received.bytes)
    }

    /// Where to append what is read next, and room for it. Nothing is done to the room beforehand: what
    /// nobody reads into costs neither time nor memory.
    pub(crate) fn room(&mut self) -> &mut Vec<u8> {
        if self.len() >= LONG && self.bytes.capacity() < AMPLE {
            self.make_ample();
        }
        self.bytes.reserve(CHUNK);
        &mut self.bytes
    }

    fn make_ample(&mut self) {
        let mut ample = spare::take().unwrap_or_default();
        if ample.capacity() < AMPLE {
            if ample.try_reserve_exact(AMPLE).is_err() {
                return;
            }
            memory::in_large_pages(ample.spare_capacity_mut());
        }
        ample.resize(ROOM, 0);
        ample.extend_from_slice(&self.bytes[self.taken..]);
        self.searched = self.searched - self.taken + ROOM;
        (self.last, self.taken, self.room) = (ROOM, ROOM, ROOM);
        self.bytes = ample;
    }

    /// The next whole line, without its newline.
    pub(crate) fn next_line(&mut self) -> Option<&[u8]> {
        self.next_message().map(|line| line.bytes())
    }

    /// The same, with what is known of it already.
    pub(crate) fn next_message(&mut self) -> Option<Line<'_>> {
        if std::mem::take(&mut self.scan_is_old) {
            self.scan = None;
        }
        let Some(offset) = newline(&self.bytes[self.searched..]) else {
            self.searched = self.bytes.len();
            self.compact();
            self.look_ahead();
            return None;
        };
        let end = self.searched + offset;
        self.last = std::mem::replace(&mut self.taken, end + 1);
        self.searched = end + 1;
        self.scan_is_old = true;
        Some(self.last_message())
    }

    /// Looks at what has come of a line that is not short, while it is at hand: when all of it has come, it is known.
    fn look_ahead(&mut self) {
        if self.len() >= CHUNK {
            let scan = self.scan.get_or_insert_default();
            scan.look_at(&self.bytes[self.taken..]);
        }
    }

    /// The same for whoever has a use for the line itself. A long one that came alone changes hands without a copy.
    pub(crate) fn next_spoken(&mut self) -> Option<Spoken<'_>> {
        self.next_message()?;
        if self.last_is_long_and_alone() {
            let mut all = std::mem::take(self);
            all.bytes.pop();
            let scan = all.scan.unwrap_or_default();
            return Some(Spoken::Taken(Owned::behind_room(all.bytes, all.room), scan));
        }
        Some(Spoken::Seen(self.last_message()))
    }

    fn last_message(&self) -> Line<'_> {
        let line = &self.bytes[self.last..self.taken - 1];
        match &self.scan {
            Some(scan) => Line::scanned(line, scan),
            None => Line::from(line),
        }
    }

    fn last_is_long_and_alone(&self) -> bool {
        let line = self.last..self.taken;
        line.len() > KEPT && line == (self.room..self.bytes.len())
    }

    /// No more will come: what came after the last newline is a line, too.
    pub(crate) fn end(&mut self) {
        if self.taken < self.bytes.len() {
            self.bytes.push(b'\n');
        }
    }

    /// Whether the line that has not ended is seen to ask or tell something, and is more than its newline short.
    pub(crate) fn begins_a_call(&self) -> bool {
        let scan = self.scan.as_ref().filter(|_| !self.scan_is_old);
        scan.is_some_and(|scan| scan.begins_a_call())
    }

    /// What came after the last newline, at the end of input: a last line without one.
    pub(crate) fn rest(&mut self) -> Option<Vec<u8>> {
        let rest = self.bytes.split_off(self.taken);
        *self = Inbox::default();
        (!rest.is_empty()).then_some(rest)
    }

    /// The first byte that was not taken.
    pub(crate) fn first(&self) -> Option<u8> {
        self.bytes.get(self.taken).copied()
    }

    /// How much of a line is there that has not ended.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() - self.taken
    }

    /// Forgets the lines that were taken, now and not with the next one: there may be none for hours.
    fn compact(&mut self) {
        if self.taken == self.room {
            return;
        }
        self.bytes.drain(..self.taken);
        self.searched -= self.taken;
        (self.last, self.taken, self.room) = (0, 0, 0);
        self.bytes.shrink_to(KEPT);
    }
}

/// Memory that a line does not need any more. What was ample may be of use to the next one.
pub(crate) fn give_back(bytes: Vec<u8>) {
    if bytes.capacity() == AMPLE {
        spare::keep(bytes);
    }
}

/// A line that was said.
#[derive(Debug)]
pub(crate) enum Spoken<'a> {
    Seen(Line<'a>),
    /// It is ours, with what is known of it.
    Taken(Owned, Box<Scan>),
}

impl Spoken<'_> {
    pub(crate) fn line(&self) -> Line<'_> {
        match self {
            Spoken::Seen(line) => *line,
            Spoken::Taken(line, scan) => Line::scanned(line, scan),
        }
    }
}

impl<'a> From<&'a [u8]> for Spoken<'a> {
    fn from(line: &'a [u8]) -> Spoken<'a> {
        Spoken::Seen(line.into())
    }
}

/// Where the first newline is. Block by block: a long line spends much of its time here.
fn newline(bytes: &[u8]) -> Option<usize> {
    let (blocks, _) = bytes.as_chunks::<64>();
    // All of a block, whatever is in it: so it is looked at in a few steps.
    let has_none =
        |block: &&[u8; 64]| !block.iter().fold(false, |any, &byte| any | (byte == b'\n'));
    let passed = 64 * blocks.iter().take_while(has_none).count();
    let offset = bytes[passed..].iter().position(|&byte| byte == b'\n')?;
    Some(passed + offset)
}

/// Lines on their way out.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    bytes: Vec<u8>,
    sent: usize,
    /// This much of a line that is not here yet was sent ahead.
    ahead: usize,
    /// What is to be said right behind that line.
    behind: Vec<u8>,
    /// What was sent is not what was said, or not in that order.
    uncounted: bool,
}

impl Outbox {
    /// Adds a line and its newline.
    pub(crate) fn push(&mut self, line: &[u8]) {
        self.recall();
        self.compact();
        self.bytes.extend_from_slice(line);
        self.bytes.push(b'\n');
    }

    /// The same for one who would not understand that a line which was begun is not said: it waits for the end of that. Not
    /// for ever: where much waits, the line must wait instead, whatever the other side makes of its beginning.
    pub(crate) fn push_in_turn(&mut self, line: &[u8]) {
        if self.ahead == 0 {
            return self.push(line);
        }
        self.uncounted = true;
        self.behind.extend_from_slice(line);
        self.behind.push(b'\n');
        if self.behind.len() > CHUNK {
            self.recall();
        }
    }

    /// Adds what is left of a line and its newline: the other side has the beginning.
    pub(crate) fn push_rest(&mut self, rest: &[u8]) {
        self.bytes.extend_from_slice(rest);
    }

    /// Adds the line that was taken last, but for what of it was sent ahead. A long one that came alone changes hands
    /// without a copy.
    pub(crate) fn push_last(&mut self, from: &mut Inbox) {
        let ahead = std::mem::take(&mut self.ahead);
        if self.is_empty() && from.last_is_long_and_alone() {
            let Inbox { bytes, room, .. } = std::mem::take(from);
            (self.bytes, self.sent) = (bytes, room + ahead);
        } else {
            self.compact();
            self.bytes
                .extend_from_slice(&from.bytes[from.last + ahead..from.taken]);
        }
        self.bytes.append(&mut self.behind);
    }

    /// Sends what has come of a line before all of it is here, if nothing else waits and the line is long.
    pub(crate) fn send_ahead(
        &mut self,
        from: &Inbox,
        mut write: impl FnMut(&[u8]) -> io::Result<usize>,
    ) {
        let line = from.unfinished();
        if !self.is_empty() || line.len() < CHUNK {
            return;
        }
        while self.ahead < line.len()
            && let Ok(count @ 1..) = write(&line[self.ahead..])
        {
            self.ahead += count;
        }
    }

    /// What was sent ahead was not said.
    pub(crate) fn recall(&mut self) {
        if std::mem::take(&mut self.ahead) > 0 {
            self.uncounted = true;
            self.bytes.extend_from_slice(&[VOID, b'\n']);
            self.bytes.append(&mut self.behind);
        }
    }

    /// How much was sent of a line that is not here yet.
    pub(crate) fn ahead(&self) -> usize {
        self.ahead
    }

    /// Whether just what was said was sent, in that order: then it can be counted how much of it was heard.
    pub(crate) fn is_counted(&self) -> bool {
        !self.uncounted
    }

    /// How much waits.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() - self.sent
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether all that was begun has been said.
    pub(crate) fn is_between_lines(&self) -> bool {
        self.is_empty() && self.ahead == 0
    }

    /// Writes until all is written or `write` would block.
    pub(crate) fn flush(
        &mut self,
        mut write: impl FnMut(&[u8]) -> io::Result<usize>,
    ) -> io::Result<()> {
        while self.sent < self.bytes.len() {
            match write(&self.bytes[self.sent..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.clear();
        Ok(())
    }

    /// A reader that never quite keeps up never empties it: before more is added, what was sent is given back all the
    /// same. Only when that is more than what is left, so that no byte is moved more than once.
    fn compact(&mut self) {
        if self.sent > self.bytes.len() / 2 {
            self.bytes.drain(..self.sent);
            self.sent = 0;
        }
    }

    /// Forgets what waits.
    pub(crate) fn clear(&mut self) {
        if self.bytes.capacity() > KEPT {
            give_back(std::mem::take(&mut self.bytes));
        }
        self.bytes.clear();
        self.sent = 0;
    }
}

#[cfg(test)]
mod tests {
    use kennel_core::message::Message;

    use super::*;

    fn feed(inbox: &mut Inbox, bytes: &[u8]) {
        inbox.room().extend_from_slice(bytes);
    }

    fn lines(inbox: &mut Inbox) -> Vec<Vec<u8>> {
        std::iter::from_fn(|| inbox.next_line().map(<[u8]>::to_vec)).collect()
    }

    #[test]
    fn lines_are_the_same_wherever_the_bytes_were_cut() {
        let text = "{\"a\":\"€😀\"}\n\n{\"b\":1}\r\nlast";
        for cut in 0..=text.len() {
            let mut inbox = Inbox::default();
            feed(&mut inbox, &text.as_bytes()[..cut]);
            let mut all = lines(&mut inbox);
            feed(&mut inbox, &text.as_bytes()[cut..]);
            all.extend(lines(&mut inbox));
            let expected: Vec<&[u8]> = vec!["{\"a\":\"€😀\"}".as_bytes(), b"", b"{\"b\":1}\r"];
            assert_eq!(all, expected, "cut at {cut}");
            assert_eq!(inbox.rest().as_deref(), Some(&b"last"[..]));
        }
    }

    #[test]
    fn what_was_said_is_the_same_whether_it_is_seen_or_taken() {
        let long = format!(
            r#"{{"jsonrpc":"2.0","id":1,"result":"{}"}}"#,
            "x".repeat(1 << 20)
        );
        for (before, behind) in [("", ""), ("{}\n", ""), ("", "{}\npart"), ("", "part")] {
            for part in [4096, CHUNK + 1, 3 * CHUNK, 2 << 20] {
                let all = format!("{before}{long}\n{behind}");
                let (mut inbox, mut heard) = (Inbox::default(), String::new());
                let mut taken = 0;
                for bytes in all.as_bytes().chunks(part) {
                    feed(&mut inbox, bytes);
                    while let Some(spoken) = inbox.next_spoken() {
                        let line = spoken.line();
                        heard.push_str(str::from_utf8(line.bytes()).unwrap());
                        heard.push('\n');
                        let alone = Message::parse(line.bytes());
                        assert_eq!(Message::parse(line), alone, "{part}");
                        taken += usize::from(matches!(spoken, Spoken::Taken(..)));
                    }
                }
                let whole = all.strip_suffix("part").unwrap_or(&all);
                assert!(heard == whole, "{before:?} {behind:?} {part}");
                assert_eq!(inbox.unfinished(), &all.as_bytes()[whole.len()..]);
                let came_alone = behind.is_empty() && (before.is_empty() || part < 2 << 20);
                assert!(taken == 1 || !came_alone, "{before:?} {behind:?} {part}");
                assert!(inbox.bytes.capacity() <= KEPT);
            }
        }
    }

    #[test]
    fn room_taken_for_a_long_line_is_given_back() {
        let mut inbox = Inbox::default();
        feed(&mut inbox, &vec![b'x'; 8 << 20]);
        assert_eq!(inbox.next_line(), None);
        feed(&mut inbox, b"\nshort\n");
        assert_eq!(lines(&mut inbox).len(), 2);
        assert!(inbox.bytes.capacity() <= KEPT);

        let mut outbox = Outbox::default();
        outbox.push(&vec![b'x'; 8 << 20]);
        outbox.flush(|bytes| Ok(bytes.len().min(65536))).unwrap();
        assert!(outbox.bytes.capacity() <= KEPT);
    }

    #[test]
    fn a_line_passed_on_is_the_same_whether_it_changes_hands_or_is_copied() {
        for length in [3, KEPT, 1 << 20] {
            let line = "x".repeat(length);
            for (before, behind) in [("", ""), ("before\n", ""), ("", "behind\n"), ("", "part")] {
                for waiting in ["", "waits\n"] {
                    let (mut inbox, mut outbox) = (Inbox::default(), Outbox::default());
                    outbox.bytes.extend_from_slice(waiting.as_bytes());
                    feed(&mut inbox, format!("{before}{line}\n{behind}").as_bytes());
                    while inbox.next_line().is_some() {
                        outbox.push_last(&mut inbox);
                    }
                    let whole = behind.strip_suffix("part").unwrap_or(behind);
                    let expected = format!("{waiting}{before}{line}\n{whole}");
                    assert!(
                        outbox.bytes[outbox.sent..] == *expected.as_bytes(),
                        "{length} {before:?} {behind:?}"
                    );
                    feed(&mut inbox, b" and more\n");
                    let more = format!("{} and more", &behind[whole.len()..]);
                    assert_eq!(lines(&mut inbox), [more.as_bytes()]);
                    outbox.flush(|bytes| Ok(bytes.len().min(65536))).unwrap();
                    assert!(outbox.bytes.capacity() <= KEPT && inbox.bytes.capacity() <= KEPT);
                }
            }
        }
    }

    #[test]
    fn a_line_that_was_sent_ahead_is_said_once_or_not_at_all() {
        let long = "x".repeat(2 * LONG);
        let sent_ahead = |taken: usize| {
            let (mut inbox, mut outbox) = (Inbox::default(), Outbox::default());
            let mut sent = Vec::new();
            feed(&mut inbox, long.as_bytes());
            assert_eq!(inbox.next_line(), None);
            outbox.send_ahead(&inbox, |bytes| {
                let count = bytes.len().min(taken - sent.len()).min(CHUNK);
                sent.extend_from_slice(&bytes[..count]);
                Ok(count)
            });
            assert_eq!(sent.len(), taken.min(long.len()));
            feed(&mut inbox, b"end\n");
            assert!(inbox.next_line().is_some());
            (inbox, outbox, sent)
        };
        let flushed = |outbox: &mut Outbox, mut sent: Vec<u8>| {
            let written = outbox.flush(|bytes| {
                sent.extend_from_slice(bytes);
                Ok(bytes.len())
            });
            written.unwrap();
            String::from_utf8(sent).unwrap()
        };
        for taken in [0, 1, LONG, usize::MAX] {
            let (mut inbox, mut outbox, sent) = sent_ahead(taken);
            outbox.push_last(&mut inbox);
            outbox.push(b"next");
            assert!(flushed(&mut outbox, sent) == format!("{long}end\nnext\n"));

            let (mut inbox, mut outbox, sent) = sent_ahead(taken);
            let ahead = match sent.len() {
                0 => String::new(),
                count => format!("{}\u{18}\n", &long[..count]),
            };
            outbox.push(b"other");
            outbox.push_last(&mut inbox);
            assert!(flushed(&mut outbox, sent) == format!("{ahead}other\n{long}end\n"));
        }
    }

    #[test]
    fn what_is_said_in_the_middle_of_a_line_comes_behind_it_unless_it_is_much() {
        let long = "x".repeat(2 * LONG);
        let refusal = vec![b'r'; 1000];
        for refusals in [1, 100] {
            let (mut inbox, mut outbox) = (Inbox::default(), Outbox::default());
            let mut sent = Vec::new();
            feed(&mut inbox, long.as_bytes());
            assert_eq!(inbox.next_line(), None);
            let mut send = |bytes: &[u8]| {
                sent.extend_from_slice(bytes);
                Ok(bytes.len())
            };
            outbox.send_ahead(&inbox, &mut send);
            for _ in 0..refusals {
                outbox.push_in_turn(&refusal);
            }
            outbox.flush(&mut send).unwrap();
            assert!(!outbox.is_counted());
            feed(&mut inbox, b"end\n");
            assert!(inbox.next_line().is_some());
            outbox.push_last(&mut inbox);
            outbox.flush(&mut send).unwrap();
            let said = String::from_utf8(sent).unwrap();
            let behind = format!("{}\n", "r".repeat(1000)).repeat(refusals);
            match refusals {
                1 => assert!(said == format!("{long}end\n{behind}")),
                _ => assert!(said == format!("{long}\u{18}\n{behind}{long}end\n")),
            }
        }
    }

    #[test]
    fn a_call_begins_with_its_method_and_ends_with_its_brace() {
        let text = "x".repeat(CHUNK);
        let asks = |inbox: &mut Inbox, part: &str| {
            feed(inbox, part.as_bytes());
            assert_eq!(inbox.next_line(), None);
            inbox.begins_a_call()
        };
        let mut inbox = Inbox::default();
        let begun = format!("{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"a\",\"params\":[\"{text}");
        assert!(asks(&mut inbox, &begun));
        assert!(asks(&mut inbox, "\"]"));
        // Some servers do not wait for more than this.
        assert!(!asks(&mut inbox, "}"));
        assert!(!asks(&mut inbox, "\r"));
        feed(&mut inbox, b"\n");
        assert!(inbox.next_line().is_some());
        assert!(!inbox.begins_a_call());
        let answer = format!("{{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":[\"{text}");
        assert!(!asks(&mut inbox, &answer));
        let mut inbox = Inbox::default();
        assert!(!asks(&mut inbox, &format!("{begun}\"],,")));
    }

    #[test]
    fn what_cannot_be_written_now_waits_in_order() {
        let mut outbox = Outbox::default();
        outbox.push(b"one");
        outbox.push(b"two");
        let mut written = Vec::new();
        let mut budget = 5;
        outbox
            .flush(|bytes| {
                let count = bytes.len().min(budget);
                budget -= count;
                written.extend_from_slice(&bytes[..count]);
                if count == 0 {
                    Err(io::ErrorKind::WouldBlock.into())
                } else {
                    Ok(count)
                }
            })
            .unwrap();
        assert_eq!((written.as_slice(), outbox.len()), (&b"one\nt"[..], 3));
        outbox
            .flush(|bytes| {
                written.extend_from_slice(bytes);
                Ok(bytes.len())
            })
            .unwrap();
        assert_eq!(written, b"one\ntwo\n");
        assert!(outbox.is_empty());
    }
}
