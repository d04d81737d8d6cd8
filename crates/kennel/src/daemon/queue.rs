//! Bounded queues to clients, which may read more slowly than servers write.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::ops::Deref;
use std::rc::{Rc, Weak};
use std::time::Instant;

use kennel_core::engine::daemon::FULL_QUEUE;
use kennel_core::lifetime::ClientId;
use kennel_core::message::Owned;

use super::run_queue::{RunQueue, Runnable};
use super::socket::Socket;
use crate::lines::{self, memory_of};

/// Short lines are joined up to this length, to be written at once.
pub(super) const MAX_BATCH: usize = 64 * 1024;

thread_local! {
    static QUEUED: Cell<usize> = const { Cell::new(0) };
}

/// Bytes of memory in all queues. A line in several queues counts once.
pub(super) fn queued_bytes() -> usize {
    QUEUED.get()
}

/// A long line, or several short lines, with newlines. It may be in several queues.
#[derive(Debug)]
pub(super) struct Chunk(Owned);

impl Chunk {
    fn new(bytes: Owned) -> Rc<Chunk> {
        let chunk = Chunk(bytes);
        QUEUED.set(QUEUED.get() + chunk.memory());
        Rc::new(chunk)
    }

    /// Bytes of memory that it takes.
    fn memory(&self) -> usize {
        memory_of(self.0.len(), self.0.capacity())
    }

    /// A line for several queues, without its newline.
    pub(super) fn of_line(mut line: Owned) -> Rc<Chunk> {
        line.push(b'\n');
        Chunk::new(line)
    }

    fn add_line(&mut self, line: &[u8]) {
        QUEUED.set(QUEUED.get() - self.memory());
        self.0.extend_from_slice(line);
        self.0.push(b'\n');
        QUEUED.set(QUEUED.get() + self.memory());
    }

    /// Its memory, which does not count any more.
    fn into_owned(mut self) -> Owned {
        QUEUED.set(QUEUED.get() - self.memory());
        std::mem::take(&mut self.0)
    }
}

impl Deref for Chunk {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        QUEUED.set(QUEUED.get() - self.memory());
    }
}

/// A chunk in a queue, which counts as memory of the queue.
#[derive(Debug)]
struct QueueEntry(Rc<Chunk>);

impl QueueEntry {
    /// Bytes of an entry: a queue may have as much room again, and many have short chunks in common.
    const MEMORY: usize = 2 * size_of::<QueueEntry>();

    fn new(chunk: Rc<Chunk>) -> QueueEntry {
        QUEUED.set(QUEUED.get() + QueueEntry::MEMORY);
        QueueEntry(chunk)
    }

    /// Its line, if it is in no other queue.
    fn into_line(self) -> Option<Owned> {
        let chunk = Rc::clone(&self.0);
        drop(self);
        Rc::into_inner(chunk).map(Chunk::into_owned)
    }
}

impl Drop for QueueEntry {
    fn drop(&mut self) {
        QUEUED.set(QUEUED.get() - QueueEntry::MEMORY);
    }
}

/// The lines queued for one client.
#[derive(Debug, Default)]
pub(super) struct Queue {
    waiting: RefCell<QueuedChunks>,
    /// The socket that a line is written to at once if the queue is empty.
    direct: RefCell<Weak<Socket>>,
    /// The client, which is run when something is queued.
    client: Option<(Rc<RunQueue>, ClientId)>,
}

#[derive(Debug, Default)]
struct QueuedChunks {
    /// The first chunk stays until all of it is written.
    chunks: VecDeque<QueueEntry>,
    /// How much of the first chunk is written.
    done: usize,
    /// Bytes that are not written.
    bytes: usize,
    ended: bool,
    /// When bytes were last written or known to be read, or when the first were queued; `None` if the queue is empty.
    waits_since: Option<Instant>,
}

/// The state of a queue after it was written.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Flushed {
    /// All is written; more may follow.
    Nothing,
    /// The socket takes no more for now.
    Blocked,
    /// All is written, and nothing will follow.
    Ended,
}

impl Queue {
    /// The queue of a client, which is run when something is queued.
    pub(super) fn of(run_queue: Rc<RunQueue>, client: ClientId) -> Queue {
        Queue {
            client: Some((run_queue, client)),
            ..Queue::default()
        }
    }

    /// Sets the socket that lines are written to at once.
    pub(super) fn write_directly_to(&self, socket: Weak<Socket>) {
        *self.direct.borrow_mut() = socket;
    }

    /// Continues with the queue of a snapshot.
    pub(super) fn restored(self, unwritten: Vec<u8>, ended: bool) -> Queue {
        let queue = self;
        {
            let mut waiting = queue.waiting.borrow_mut();
            waiting.ended = ended;
            if !unwritten.is_empty() {
                let length = unwritten.len();
                waiting
                    .chunks
                    .push_back(QueueEntry::new(Chunk::new(unwritten.into())));
                queue.chunk_queued(&mut waiting, length);
            }
        }
        queue
    }

    /// The bytes that are not written yet.
    pub(super) fn unwritten(&self) -> Vec<u8> {
        let QueuedChunks {
            chunks,
            done,
            bytes: _,
            // In a snapshot beside these bytes.
            ended: _,
            waits_since: _,
        } = &*self.waiting.borrow();
        let all: Vec<&[u8]> = chunks.iter().map(|chunk| &chunk.0[..]).collect();
        all.concat().split_off(*done)
    }

    /// Queues a line and a newline.
    pub(super) fn push(&self, line: &[u8]) {
        if !self.append_to_last(line) {
            let mut own = Vec::with_capacity(line.len() + 1);
            own.extend_from_slice(line);
            self.add(own.into());
        }
    }

    /// The same without a copy of a long line.
    pub(super) fn push_line(&self, line: Owned) {
        if !self.append_to_last(&line) {
            self.add(line);
        }
    }

    /// Appends a short line to the last chunk.
    fn append_to_last(&self, line: &[u8]) -> bool {
        let mut waiting = self.waiting.borrow_mut();
        let length = line.len() + 1;
        let last = waiting
            .chunks
            .back_mut()
            .and_then(|it| Rc::get_mut(&mut it.0));
        let Some(last) = last.filter(|last| last.len() + length <= MAX_BATCH) else {
            return false;
        };
        last.add_line(line);
        self.chunk_queued(&mut waiting, length);
        true
    }

    fn add(&self, mut line: Owned) {
        line.push(b'\n');
        let mut waiting = self.waiting.borrow_mut();
        let mut length = line.len();
        if waiting.bytes == 0 {
            length -= self.write_now(&line);
            waiting.done = if length > 0 { line.len() - length } else { 0 };
        }
        if length > 0 {
            waiting.chunks.push_back(QueueEntry::new(Chunk::new(line)));
            self.chunk_queued(&mut waiting, length);
        } else {
            recycle(Some(line));
        }
    }

    /// Queues a chunk that is in other queues, too.
    pub(super) fn push_chunk(&self, chunk: &Rc<Chunk>) {
        let mut waiting = self.waiting.borrow_mut();
        let mut length = chunk.len();
        if waiting.bytes == 0 {
            length -= self.write_now(chunk);
            waiting.done = if length > 0 { chunk.len() - length } else { 0 };
        }
        if length > 0 {
            waiting.chunks.push_back(QueueEntry::new(Rc::clone(chunk)));
            self.chunk_queued(&mut waiting, length);
        }
    }

    fn chunk_queued(&self, waiting: &mut QueuedChunks, length: usize) {
        waiting.bytes += length;
        waiting.waits_since.get_or_insert_with(Instant::now);
        self.is_due();
    }

    /// Has the client run.
    fn is_due(&self) {
        if let Some((run_queue, client)) = &self.client {
            run_queue.push(Runnable::Client(*client));
        }
    }

    /// Writes as many bytes as the socket takes now. If the connection is broken, the next write reports it.
    fn write_now(&self, line: &[u8]) -> usize {
        let socket = self.direct.borrow().upgrade();
        socket.map_or(0, |socket| {
            socket.start_line();
            socket.try_write(line).unwrap_or(0)
        })
    }

    /// How many bytes are queued.
    pub(super) fn len(&self) -> usize {
        self.waiting.borrow().bytes
    }

    /// When bytes were last written or seen to be read, or when the first were queued.
    pub(super) fn waits_since(&self) -> Option<Instant> {
        self.waiting.borrow().waits_since
    }

    /// Records that the client was seen to read, though there is no room for more yet.
    pub(super) fn is_being_read(&self, now: Instant) {
        let mut waiting = self.waiting.borrow_mut();
        waiting.waits_since = (waiting.bytes > 0).then_some(now);
    }

    pub(super) fn is_full(&self) -> bool {
        self.waiting.borrow().bytes >= FULL_QUEUE
    }

    /// Whether all is written.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.borrow().bytes == 0
    }

    /// Ends the queue: after what is queued now, the connection is closed.
    pub(super) fn end(&self) {
        self.waiting.borrow_mut().ended = true;
        self.is_due();
    }

    pub(super) fn is_ended(&self) -> bool {
        self.waiting.borrow().ended
    }

    /// Whether something is queued, or the queue has ended.
    pub(super) fn has_output_or_end(&self) -> bool {
        !self.is_empty() || self.is_ended()
    }

    /// Writes the queue; `write` writes a part and returns how much.
    pub(super) fn write_out(
        &self,
        mut write: impl FnMut(&[u8]) -> io::Result<usize>,
    ) -> io::Result<Flushed> {
        loop {
            let next = self
                .waiting
                .borrow()
                .chunks
                .front()
                .map(|it| Rc::clone(&it.0));
            let Some(chunk) = next else {
                return Ok(match self.is_ended() {
                    true => Flushed::Ended,
                    false => Flushed::Nothing,
                });
            };
            let mut done = self.waiting.borrow().done;
            while done < chunk.len() {
                let count = match write(&chunk[done..]) {
                    Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                    Ok(count) => count,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        return Ok(Flushed::Blocked);
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    Err(error) => return Err(error),
                };
                done += count;
                let mut waiting = self.waiting.borrow_mut();
                waiting.done = done;
                waiting.bytes -= count;
                waiting.waits_since = (waiting.bytes > 0).then(Instant::now);
            }
            drop(chunk);
            let mut waiting = self.waiting.borrow_mut();
            let written = waiting.chunks.pop_front();
            waiting.done = 0;
            drop(waiting);
            recycle(written.and_then(QueueEntry::into_line));
        }
    }
}

/// Keeps the memory of a written line for the next long one.
pub(super) fn recycle(line: Option<Owned>) {
    if let Some(line) = line {
        lines::release_buffer(line.into_buffer());
    }
}

#[cfg(test)]
mod tests {
    use kennel_sys::io::{Reactor, Stream};

    use super::*;

    /// Writes at most `most` bytes, three at a time.
    fn taken(queue: &Queue, most: usize) -> Vec<u8> {
        let mut taken = Vec::new();
        let written = queue.write_out(|bytes| {
            if taken.len() >= most {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let count = bytes.len().min(3);
            taken.extend_from_slice(&bytes[..count]);
            Ok(count)
        });
        written.unwrap();
        taken
    }

    #[test]
    fn lines_are_written_in_order_and_then_the_end() {
        let queue = Queue::default();
        queue.push(b"one");
        queue.push(&[b'x'; MAX_BATCH]);
        queue.push(b"two");
        queue.end();
        let all = taken(&queue, usize::MAX);
        assert!(all.starts_with(b"one\nxxx") && all.ends_with(b"x\ntwo\n"));
        assert_eq!(all.len(), 4 + MAX_BATCH + 1 + 4);
        assert!(queue.is_empty());
        assert_eq!(queue.write_out(|_| unreachable!()).unwrap(), Flushed::Ended);
    }

    #[test]
    fn a_client_is_run_when_its_queue_gets_lines_or_ends() {
        let run_queue = Rc::new(RunQueue::default());
        let queue = Queue::of(Rc::clone(&run_queue), ClientId(7));
        for add in [|queue: &Queue| queue.push(b"one"), Queue::end] {
            assert!(run_queue.is_empty());
            add(&queue);
            let mut due = Vec::new();
            run_queue.take_all(&mut due);
            assert_eq!(due, [Runnable::Client(ClientId(7))]);
        }
    }

    #[test]
    fn a_line_written_at_once_precedes_queued_lines() {
        use std::io::Read;
        let (ours, mut theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let reactor = Reactor::new().unwrap();
        let stream = Stream::new(ours.into()).unwrap();
        let socket = Rc::new(Socket::new(&reactor, ClientId(1), stream));
        let queue = Queue::default();
        queue.write_directly_to(Rc::downgrade(&socket));
        queue.push(b"one");
        assert!(queue.is_empty());
        // Longer than the socket takes at once.
        queue.push_line(vec![b'x'; 4 << 20].into());
        let left = queue.len();
        assert!(left > 0 && left < 4 << 20);
        queue.push(b"two");
        assert_eq!(queue.len(), left + 4);
        queue.end();
        let reading = std::thread::spawn(move || {
            let mut all = Vec::new();
            theirs.read_to_end(&mut all).map(|_| all)
        });
        while queue.write_out(|bytes| socket.try_write(bytes)).unwrap() != Flushed::Ended {
            std::thread::yield_now();
        }
        drop(socket);
        let all = reading.join().unwrap().unwrap();
        let expected = [&b"one\n"[..], &vec![b'x'; 4 << 20], b"\ntwo\n"].concat();
        assert!(all == expected);
    }

    #[test]
    fn a_restored_queue_goes_on_wherever_writing_stopped() {
        for most in (0..40).step_by(3) {
            let queue = Queue::default();
            queue.push(b"one");
            queue.push(&[b'x'; 20]);
            queue.push(b"three");
            let written = taken(&queue, most);
            queue.push(b"four");
            let next = Queue::default().restored(queue.unwritten(), true);
            assert_eq!(next.len(), queue.len());
            let rest = taken(&next, usize::MAX);
            let all = [written, rest].concat();
            let expected = [&b"one\n"[..], &[b'x'; 20], b"\nthree\nfour\n"].concat();
            assert_eq!(all, expected, "cut at {most}");
        }
    }

    #[test]
    fn a_line_in_several_queues_is_in_memory_once_and_written_to_each() {
        let before = queued_bytes();
        let queues = [Queue::default(), Queue::default(), Queue::default()];
        let chunk = Chunk::of_line(vec![b'x'; 3 * MAX_BATCH].into());
        for queue in &queues {
            queue.push(b"one");
            queue.push_chunk(&chunk);
            queue.push(b"two");
        }
        drop(chunk);
        let entries = 9 * QueueEntry::MEMORY;
        assert_eq!(queued_bytes() - before, 3 * MAX_BATCH + 1 + 3 * 8 + entries);
        for queue in &queues {
            assert_eq!(queue.len(), 3 * MAX_BATCH + 9);
            let all = taken(queue, usize::MAX);
            assert!(all.starts_with(b"one\nxxx") && all.ends_with(b"x\ntwo\n"));
            assert_eq!(all.len(), 3 * MAX_BATCH + 9);
        }
        assert_eq!(queued_bytes(), before);
        queues[0].push(b"unread");
        drop(queues);
        assert_eq!(queued_bytes(), before);
    }

    #[test]
    fn a_full_queue_has_room_again_when_it_is_written() {
        let queue = Queue::default();
        queue.push(&vec![b'x'; FULL_QUEUE]);
        assert!(queue.is_full());
        taken(&queue, usize::MAX);
        assert!(!queue.is_full() && queue.is_empty());
    }
}
