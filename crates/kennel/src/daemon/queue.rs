//! Lines between two that are not equally fast: bounded, so that the slow one holds up only its own other side.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::ops::Deref;
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

use kennel_core::message::Owned;

use super::socket::Socket;
use super::spare::give_back;
use super::tasks::Notify;
use crate::shim::lines::memory_of;

/// Who wants to add to more than this waits. Soft: one line may be longer than all of it.
const FULL: usize = 1 << 20;
/// Short lines are put together up to this, to be written at once.
pub(super) const TOGETHER: usize = 64 * 1024;

thread_local! {
    static QUEUED: Cell<usize> = const { Cell::new(0) };
}

/// How many bytes of memory are held in all queues. A line that waits in several of them counts once.
pub(super) fn queued_bytes() -> usize {
    QUEUED.get()
}

/// A long line, or several short ones, with newlines. It may wait in more than one queue.
#[derive(Debug)]
pub(super) struct Chunk(Owned);

impl Chunk {
    fn new(bytes: Owned) -> Rc<Chunk> {
        let chunk = Chunk(bytes);
        QUEUED.set(QUEUED.get() + chunk.memory());
        Rc::new(chunk)
    }

    /// How much memory it takes up.
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

    /// Its memory, which counts no more.
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

/// Bytes on their way to one reader.
#[derive(Debug, Default)]
pub(super) struct Queue {
    waiting: RefCell<Waiting>,
    /// Where a line may go at once when none waits: whoever writes the queue out is not woken for it.
    straight: RefCell<Weak<Socket>>,
    news: Notify,
    room: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    /// The first one stays until all of it is written; nothing is added to it while somebody writes it.
    chunks: VecDeque<Rc<Chunk>>,
    /// This much of the first chunk is written.
    done: usize,
    /// Of what is not written.
    bytes: usize,
    ended: bool,
    /// When something was last taken, or began to wait; `None` while nothing waits.
    moved: Option<Instant>,
}

impl Queue {
    /// From now on lines may go straight to this socket.
    pub(super) fn goes_straight_to(&self, socket: Weak<Socket>) {
        *self.straight.borrow_mut() = socket;
    }

    /// One that goes on where another stopped: with what that one had not written yet.
    pub(super) fn resumed(unwritten: Vec<u8>, ended: bool) -> Queue {
        let queue = Queue::default();
        {
            let mut waiting = queue.waiting.borrow_mut();
            waiting.ended = ended;
            if !unwritten.is_empty() {
                let length = unwritten.len();
                waiting.chunks.push_back(Chunk::new(unwritten.into()));
                queue.waits(&mut waiting, length);
            }
        }
        queue
    }

    /// What is not written yet.
    pub(super) fn unwritten(&self) -> Vec<u8> {
        let waiting = self.waiting.borrow();
        let all: Vec<&[u8]> = waiting.chunks.iter().map(|chunk| &chunk[..]).collect();
        all.concat().split_off(waiting.done)
    }

    /// Adds a line and its newline.
    pub(super) fn push(&self, line: &[u8]) {
        if !self.joins_others(line) {
            let mut own = Vec::with_capacity(line.len() + 1);
            own.extend_from_slice(line);
            self.add(own.into());
        }
    }

    /// Adds a line and its newline; a long one without a copy.
    pub(super) fn push_line(&self, line: Owned) {
        if !self.joins_others(&line) {
            self.add(line);
        }
    }

    /// Puts a short line behind others that wait.
    fn joins_others(&self, line: &[u8]) -> bool {
        let mut waiting = self.waiting.borrow_mut();
        let length = line.len() + 1;
        let last = waiting.chunks.back_mut().and_then(Rc::get_mut);
        let Some(last) = last.filter(|last| last.len() + length <= TOGETHER) else {
            return false;
        };
        last.add_line(line);
        self.waits(&mut waiting, length);
        true
    }

    fn add(&self, mut line: Owned) {
        line.push(b'\n');
        let mut waiting = self.waiting.borrow_mut();
        let mut length = line.len();
        if waiting.bytes == 0 {
            length -= self.write_at_once(&line);
            waiting.done = if length > 0 { line.len() - length } else { 0 };
        }
        if length > 0 {
            waiting.chunks.push_back(Chunk::new(line));
            self.waits(&mut waiting, length);
        } else {
            give_back(Some(line));
        }
    }

    /// Adds a line that waits in other queues, too, without a copy.
    pub(super) fn push_chunk(&self, chunk: &Rc<Chunk>) {
        let mut waiting = self.waiting.borrow_mut();
        let mut length = chunk.len();
        if waiting.bytes == 0 {
            length -= self.write_at_once(chunk);
            waiting.done = if length > 0 { chunk.len() - length } else { 0 };
        }
        if length > 0 {
            waiting.chunks.push_back(Rc::clone(chunk));
            self.waits(&mut waiting, length);
        }
    }

    fn waits(&self, waiting: &mut Waiting, length: usize) {
        waiting.bytes += length;
        waiting.moved.get_or_insert_with(Instant::now);
        self.news.notify_one();
    }

    /// What the socket takes now. If it takes nothing more for good, whoever writes the queue out will see.
    fn write_at_once(&self, line: &[u8]) -> usize {
        let socket = self.straight.borrow().upgrade();
        socket.map_or(0, |socket| {
            socket.is_between_lines();
            socket.try_write(line).unwrap_or(0)
        })
    }

    /// How many bytes wait.
    pub(super) fn len(&self) -> usize {
        self.waiting.borrow().bytes
    }

    /// For how long nothing of what waits has been taken.
    pub(super) fn stands_still_for(&self) -> Duration {
        self.waiting
            .borrow()
            .moved
            .map_or(Duration::ZERO, |moved| moved.elapsed())
    }

    /// Waits until it is not full.
    pub(super) async fn has_room(&self) {
        while self.is_full() {
            self.room.notified().await;
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.waiting.borrow().bytes >= FULL
    }

    /// Whether all was written.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.borrow().bytes == 0
    }

    /// Nothing will be added any more: whoever writes it out is done after what waits now.
    pub(super) fn end(&self) {
        self.waiting.borrow_mut().ended = true;
        self.news.notify_one();
    }

    pub(super) fn is_ended(&self) -> bool {
        self.waiting.borrow().ended
    }

    /// Waits until somebody added something, or nobody will any more.
    pub(super) async fn has_news(&self) {
        while self.is_empty() && !self.is_ended() {
            self.news.notified().await;
        }
    }

    /// Writes out what is added, until [`end`](Self::end); `write` writes a part, and says how much.
    pub(super) async fn write_out(
        &self,
        mut write: impl AsyncFnMut(&[u8]) -> io::Result<usize>,
    ) -> io::Result<()> {
        loop {
            let next = self.waiting.borrow().chunks.front().cloned();
            let Some(chunk) = next else {
                if self.is_ended() {
                    return Ok(());
                }
                self.news.notified().await;
                continue;
            };
            let mut done = self.waiting.borrow().done;
            while done < chunk.len() {
                let count = write(&chunk[done..]).await?;
                done += count;
                let mut waiting = self.waiting.borrow_mut();
                waiting.done = done;
                waiting.bytes -= count;
                waiting.moved = (waiting.bytes > 0).then(Instant::now);
            }
            drop(chunk);
            let mut waiting = self.waiting.borrow_mut();
            let written = waiting.chunks.pop_front();
            waiting.done = 0;
            drop(waiting);
            give_back(written.and_then(Rc::into_inner).map(Chunk::into_owned));
            self.room.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::stream::ClientStream;
    use super::super::tasks::{first_of, others_first, run};
    use super::*;

    /// Writes out at most `budget` bytes, three at a time.
    async fn taken(queue: &Queue, budget: usize) -> Vec<u8> {
        let mut taken = Vec::new();
        let writing = queue.write_out(async |bytes| {
            if taken.len() >= budget {
                return std::future::pending().await;
            }
            let count = bytes.len().min(3);
            taken.extend_from_slice(&bytes[..count]);
            Ok(count)
        });
        first_of! {
            written = writing => written.unwrap(),
            () = others_first() => {},
        }
        taken
    }

    #[test]
    fn what_was_added_is_written_in_order_and_then_the_end() {
        run(async {
            let queue = Queue::default();
            queue.push(b"one");
            queue.push(&[b'x'; TOGETHER]);
            queue.push(b"two");
            queue.end();
            let all = taken(&queue, usize::MAX).await;
            assert!(all.starts_with(b"one\nxxx") && all.ends_with(b"x\ntwo\n"));
            assert_eq!(all.len(), 4 + TOGETHER + 1 + 4);
            assert!(queue.is_empty());
        })
        .unwrap();
    }

    #[test]
    fn what_goes_straight_comes_before_what_has_to_wait() {
        run(async {
            use std::io::Read;
            let (ours, mut theirs) = std::os::unix::net::UnixStream::pair().unwrap();
            let socket = std::rc::Rc::new(Socket::new(ClientStream::new(ours)).unwrap());
            let queue = Queue::default();
            queue.goes_straight_to(std::rc::Rc::downgrade(&socket));
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
            let written = queue.write_out(async |bytes| socket.write(bytes).await);
            written.await.unwrap();
            drop(socket);
            let all = reading.join().unwrap().unwrap();
            let expected = [&b"one\n"[..], &vec![b'x'; 4 << 20], b"\ntwo\n"].concat();
            assert!(all == expected);
        })
        .unwrap();
    }

    #[test]
    fn what_is_not_written_goes_on_elsewhere_wherever_it_was_cut() {
        run(async {
            for budget in (0..40).step_by(3) {
                let queue = Queue::default();
                queue.push(b"one");
                queue.push(&[b'x'; 20]);
                queue.push(b"three");
                let written = taken(&queue, budget).await;
                queue.push(b"four");
                let next = Queue::resumed(queue.unwritten(), true);
                assert_eq!(next.len(), queue.len());
                let rest = taken(&next, usize::MAX).await;
                let all = [written, rest].concat();
                let expected = [&b"one\n"[..], &[b'x'; 20], b"\nthree\nfour\n"].concat();
                assert_eq!(all, expected, "cut at {budget}");
            }
        })
        .unwrap();
    }

    #[test]
    fn a_line_in_several_queues_is_held_once_and_written_whole_to_each() {
        run(async {
            let before = queued_bytes();
            let queues = [Queue::default(), Queue::default(), Queue::default()];
            let chunk = Chunk::of_line(vec![b'x'; 3 * TOGETHER].into());
            for queue in &queues {
                queue.push(b"one");
                queue.push_chunk(&chunk);
                queue.push(b"two");
            }
            drop(chunk);
            assert_eq!(queued_bytes() - before, 3 * TOGETHER + 1 + 3 * 8);
            for queue in &queues {
                assert_eq!(queue.len(), 3 * TOGETHER + 9);
                let all = taken(queue, usize::MAX).await;
                assert!(all.starts_with(b"one\nxxx") && all.ends_with(b"x\ntwo\n"));
                assert_eq!(all.len(), 3 * TOGETHER + 9);
            }
            assert_eq!(queued_bytes(), before);
            queues[0].push(b"unread");
            drop(queues);
            assert_eq!(queued_bytes(), before);
        })
        .unwrap();
    }

    #[test]
    fn a_full_queue_has_room_again_when_it_is_written() {
        run(async {
            let queue = Queue::default();
            queue.push(&vec![b'x'; FULL]);
            assert!(queue.is_full());
            taken(&queue, usize::MAX).await;
            queue.has_room().await;
            assert!(queue.is_empty());
        })
        .unwrap();
    }
}
