//! Who is woken gets a turn; when nobody is, all sleep.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use super::descriptor::Descriptors;
use super::moments::Moments;
use super::slab::{Number, Slab};

thread_local! {
    /// The loop that runs on this thread.
    static HERE: RefCell<Option<Rc<Round>>> = const { RefCell::new(None) };
    /// Who is to have a turn, in this order.
    static WOKEN: RefCell<Vec<Who>> = const { RefCell::new(Vec::new()) };
}

/// All tasks of a thread, and what wakes them.
pub(super) struct Round {
    tasks: RefCell<Slab<Rc<Task>>>,
    pub(super) descriptors: Descriptors,
    pub(super) moments: Moments,
}

/// Runs it, and the tasks that are begun meanwhile, until it is done. What is left of them is dropped.
pub(in crate::daemon) fn run<T>(first: impl Future<Output = T>) -> io::Result<T> {
    let round = Rc::new(Round {
        tasks: RefCell::default(),
        descriptors: Descriptors::new()?,
        moments: Moments::new()?,
    });
    let before = HERE.replace(Some(Rc::clone(&round)));
    assert!(before.is_none(), "one event loop at a time");
    let _ends = Ends(Rc::clone(&round));
    Moments::begin(&round)?;
    Ok(round.run(pin!(first)))
}

/// Nothing of a loop that has ended is found by the next one.
struct Ends(Rc<Round>);

impl Drop for Ends {
    fn drop(&mut self) {
        // One by one, for each may know of others; and while the loop is still there, for they look for it.
        loop {
            let tasks = self.0.tasks.borrow_mut().take_all();
            if tasks.is_empty() {
                break;
            }
            tasks.iter().for_each(|task| task.end());
        }
        HERE.take();
        WOKEN.take();
    }
}

impl Round {
    /// The one that runs on this thread.
    pub(super) fn here() -> Rc<Round> {
        let here = HERE.with_borrow(Option::clone);
        here.expect("tasks are begun by tasks")
    }

    fn run<T>(&self, mut first: Pin<&mut impl Future<Output = T>>) -> T {
        let ticket = Ticket::of(Who::First);
        let waker = Waker::from(Arc::clone(&ticket));
        waker.wake_by_ref();
        let mut turns = Vec::new();
        loop {
            WOKEN.with_borrow_mut(|woken| std::mem::swap(woken, &mut turns));
            for who in turns.drain(..) {
                match who {
                    Who::Task(number) => self.turn_of(number),
                    Who::First => {
                        ticket.is_woken.store(false, Ordering::Relaxed);
                        let mut context = Context::from_waker(&waker);
                        if let Poll::Ready(outcome) = first.as_mut().poll(&mut context) {
                            return outcome;
                        }
                    }
                }
            }
            // Who wakes others, or himself, again and again keeps nobody from being heard.
            let all_sleep = WOKEN.with_borrow(Vec::is_empty);
            self.descriptors.wake_those_ready(all_sleep);
        }
    }

    fn turn_of(&self, number: Number) {
        let task = self.tasks.borrow().get(number).map(Rc::clone);
        if let Some(task) = task
            && task.turn().is_ready()
        {
            self.tasks.borrow_mut().remove(number);
            task.end();
        }
    }

    /// Begins a task.
    pub(super) fn begin(&self, work: Pin<Box<dyn Future<Output = ()>>>) -> Number {
        let mut tasks = self.tasks.borrow_mut();
        tasks.insert(|number| {
            let ticket = Ticket::of(Who::Task(number));
            let waker = Waker::from(Arc::clone(&ticket));
            waker.wake_by_ref();
            Rc::new(Task {
                work: RefCell::new(Some(work)),
                ended: Cell::new(false),
                ticket,
                waker,
            })
        })
    }

    /// Ends a task before it is done.
    pub(super) fn end(&self, number: Number) {
        let task = self.tasks.borrow_mut().remove(number);
        if let Some(task) = task {
            task.end();
        }
    }
}

struct Task {
    /// Until it is done.
    work: RefCell<Option<Pin<Box<dyn Future<Output = ()>>>>>,
    /// It gets no turn any more.
    ended: Cell<bool>,
    ticket: Arc<Ticket>,
    waker: Waker,
}

impl Task {
    fn turn(&self) -> Poll<()> {
        self.ticket.is_woken.store(false, Ordering::Relaxed);
        let mut work = self.work.borrow_mut();
        let Some(future) = &mut *work else {
            return Poll::Ready(());
        };
        let mut context = Context::from_waker(&self.waker);
        // One that panics has said so on stderr, and is done; the others are not.
        let turn = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(&mut context)));
        match turn.unwrap_or(Poll::Ready(())) {
            Poll::Pending if !self.ended.get() => Poll::Pending,
            _ => Poll::Ready(()),
        }
    }

    /// Drops its work; if it is its own turn, at the end of that.
    fn end(&self) {
        self.ended.set(true);
        let work = self
            .work
            .try_borrow_mut()
            .ok()
            .and_then(|mut work| work.take());
        // What it holds may panic, too.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(work)));
    }
}

/// Who can be woken.
#[derive(Clone, Copy)]
enum Who {
    First,
    Task(Number),
}

/// What a task is woken by. It does not leave the thread, whatever its type allows.
struct Ticket {
    who: Who,
    is_woken: AtomicBool,
}

impl Ticket {
    fn of(who: Who) -> Arc<Ticket> {
        Arc::new(Ticket {
            who,
            is_woken: AtomicBool::new(false),
        })
    }
}

impl Wake for Ticket {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Nobody else is between these two: no exchange is needed.
        if !self.is_woken.load(Ordering::Relaxed) {
            self.is_woken.store(true, Ordering::Relaxed);
            WOKEN.with_borrow_mut(|woken| woken.push(self.who));
        }
    }
}

/// How many steps of one task are done before others have their turn.
const STEPS: usize = 64;

/// Does one step after another, until `step` returns `false`. After every [`STEPS`] of them others have their turn: whoever
/// says many short lines at once holds up nobody.
pub(in crate::daemon) async fn in_turns(mut step: impl FnMut() -> bool) {
    loop {
        for _ in 0..STEPS {
            if !step() {
                return;
            }
        }
        others_first().await;
    }
}

/// Lets all others who are awake have their turn first.
pub(in crate::daemon) async fn others_first() {
    let mut waited = false;
    poll_fn(|context| {
        if std::mem::replace(&mut waited, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::super::{run, spawn};
    use super::*;

    #[test]
    fn many_steps_of_one_task_let_others_have_turns_between() {
        let turns = Rc::new(Cell::new(0));
        run(async {
            let counts = Rc::clone(&turns);
            let other = spawn(async move {
                loop {
                    counts.set(counts.get() + 1);
                    others_first().await;
                }
            });
            let mut steps = 0;
            in_turns(|| {
                steps += 1;
                steps < 100 * STEPS
            })
            .await;
            assert_eq!(steps, 100 * STEPS);
            drop(other);
        })
        .unwrap();
        assert_eq!(turns.get(), 99);
    }
}
