//! The first of several.

use std::pin::Pin;
use std::task::{Context, Poll};

/// Waits for several, and does what is to be done for the first that comes: they are looked at in the order in which they
/// stand, and the others are dropped before it is done.
macro_rules! first_of {
    ($($came:pat = $waits:expr => $then:expr),+ $(,)?) => {{
        let first = $crate::daemon::tasks::first_of!(@waits $($waits,)+).await;
        $crate::daemon::tasks::first_of!(@then first, $($came => $then,)+)
    }};
    (@waits $one:expr,) => { std::pin::pin!($one) };
    (@waits $one:expr, $($more:expr,)+) => {
        $crate::daemon::tasks::Either::of(
            std::pin::pin!($one),
            $crate::daemon::tasks::first_of!(@waits $($more,)+),
        )
    };
    (@then $first:expr, $came:pat => $then:expr,) => {
        match $first { $came => $then }
    };
    (@then $first:expr, $came:pat => $then:expr, $($more:tt)+) => {
        match $first {
            $crate::daemon::tasks::This::One($came) => $then,
            $crate::daemon::tasks::This::Other(other) => {
                $crate::daemon::tasks::first_of!(@then other, $($more)+)
            }
        }
    };
}
pub(in crate::daemon) use first_of;

/// Which of two came first.
#[derive(Debug)]
pub(in crate::daemon) enum This<A, B> {
    One(A),
    Other(B),
}

/// Two that are waited for at once.
#[derive(Debug)]
pub(in crate::daemon) struct Either<A, B>(A, B);

impl<A, B> Either<A, B> {
    pub(in crate::daemon) fn of(one: A, other: B) -> Either<A, B> {
        Either(one, other)
    }
}

impl<A: Future + Unpin, B: Future + Unpin> Future for Either<A, B> {
    type Output = This<A::Output, B::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match Pin::new(&mut self.0).poll(context) {
            Poll::Ready(came) => Poll::Ready(This::One(came)),
            Poll::Pending => Pin::new(&mut self.1).poll(context).map(This::Other),
        }
    }
}

/// What comes of it; never, unless it is wanted.
pub(in crate::daemon) async fn when<F: Future>(wanted: bool, waited_for: F) -> F::Output {
    match wanted {
        true => waited_for.await,
        false => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::{pending, ready};

    use super::super::run;
    use super::*;

    /// Counts when it is dropped.
    struct Counts<'a>(&'a Cell<u32>);

    impl Drop for Counts<'_> {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
        }
    }

    #[test]
    fn the_first_that_is_there_counts_and_the_others_are_dropped_before() {
        let dropped = Cell::new(0);
        let never = async |counts: Counts<'_>| {
            pending::<()>().await;
            drop(counts);
        };
        let came = run(async {
            first_of! {
                () = never(Counts(&dropped)) => 0,
                came = ready(1) => {
                    assert_eq!(dropped.get(), 2);
                    came
                },
                () = never(Counts(&dropped)) => 2,
                came = ready(3) => came,
            }
        });
        assert_eq!(came.unwrap(), 1);
    }

    #[test]
    fn what_is_not_wanted_does_not_come() {
        let came = run(async {
            first_of! {
                () = when(false, ready(())) => "unwanted",
                () = when(true, ready(())) => "wanted",
            }
        });
        assert_eq!(came.unwrap(), "wanted");
    }
}
