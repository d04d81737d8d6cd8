//! The table once more, written independently, and every cell of it reached through public calls.

use super::table::{Event, State};
use super::{ClientId, Lifetime, Liveness, Owner, Policy, Reason};
use crate::time::Moment;

use Cell::{ChangeTo, End, Stay};
use Expected::{Linger, Server, Silence, Stop};
use State::{Abandoned, Down, DownUnowned, Ended, Idle, Serving, ServingUnowned};

#[derive(Clone, Copy, Debug)]
enum Cell {
    Stay,
    ChangeTo(State),
    End(Expected),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Expected {
    Linger,
    Grace,
    Silence,
    Server,
    Stop,
}

/// The columns. `Advance` has two: before the timeout, and at the timeout.
#[derive(Clone, Copy, Debug)]
enum Column {
    On(Event),
    AtDeadline,
}

const COLUMNS: [Column; 10] = [
    Column::On(Event::Arrival),
    Column::On(Event::Departure),
    Column::On(Event::LastDeparture),
    Column::On(Event::Traffic),
    Column::On(Event::OwnerGone),
    Column::On(Event::ServerExited),
    Column::On(Event::ServerStarted),
    Column::On(Event::StopRequested),
    Column::On(Event::Advance),
    Column::AtDeadline,
];

#[rustfmt::skip]
const GRID: [(State, [Cell; 10]); 7] = [
    //                arrival             departure  last departure  traffic  owner gone          server exited    server started      stop asked  tick   at deadline
    (Serving,        [Stay,               Stay,      ChangeTo(Idle),       Stay,    ChangeTo(ServingUnowned), ChangeTo(Down),        Stay,               End(Stop),  Stay,  End(Silence)]),
    (ServingUnowned, [Stay,               Stay,      ChangeTo(Abandoned),  Stay,    Stay,               ChangeTo(DownUnowned), Stay,               End(Stop),  Stay,  End(Silence)]),
    (Down,           [Stay,               Stay,      End(Server),    Stay,    ChangeTo(DownUnowned),    Stay,            ChangeTo(Serving),        End(Stop),  Stay,  End(Silence)]),
    (DownUnowned,    [Stay,               Stay,      End(Server),    Stay,    Stay,               Stay,            ChangeTo(ServingUnowned), End(Stop),  Stay,  End(Silence)]),
    (Idle,           [ChangeTo(Serving),        Stay,      Stay,           Stay,    ChangeTo(Abandoned),      End(Server),     Stay,               End(Stop),  Stay,  End(Linger)]),
    (Abandoned,      [ChangeTo(ServingUnowned), Stay,      Stay,           Stay,    Stay,               End(Server),     Stay,               End(Stop),  Stay,  End(Expected::Grace)]),
    (Ended,          [Stay,               Stay,      Stay,           Stay,    Stay,               Stay,            Stay,               Stay,       Stay,  Stay]),
];

const FIRST: ClientId = ClientId(1);
const SECOND: ClientId = ClientId(2);
const THIRD: ClientId = ClientId(3);

#[test]
fn every_state_answers_every_event_as_the_design_says() {
    for (state, cells) in GRID {
        for (column, expected) in COLUMNS.into_iter().zip(cells) {
            let mut life = in_state(state, column);
            assert_eq!(life.state(), state, "the way to {state:?} leads there");
            let before = life.verdict();

            hand_in(&mut life, column);

            let cell = format!("{state:?} x {column:?}");
            match expected {
                Stay => {
                    assert_eq!(life.state(), state, "{cell}");
                    assert_eq!(life.verdict(), before, "{cell}");
                }
                ChangeTo(next) => {
                    assert_eq!(life.state(), next, "{cell}");
                    assert_eq!(life.verdict(), None, "{cell}");
                }
                End(reason) => {
                    assert_eq!(life.state(), Ended, "{cell}");
                    assert_eq!(life.verdict().map(of), Some(reason), "{cell}");
                    assert_eq!(
                        life.next_timeout(),
                        None,
                        "{cell}: nothing is left to wait for"
                    );
                }
            }
        }
    }
}

#[test]
fn the_grid_has_every_state_once_and_every_event_once() {
    let rows: Vec<_> = GRID.iter().map(|&(state, _)| row(state)).collect();
    assert_eq!(rows, (0..GRID.len()).collect::<Vec<_>>());

    let columns: Vec<_> = COLUMNS.iter().map(|&column| column_of(column)).collect();
    assert_eq!(columns, (0..COLUMNS.len()).collect::<Vec<_>>());
}

/// The row of a state. A new state does not compile until it has one.
fn row(state: State) -> usize {
    match state {
        Serving => 0,
        ServingUnowned => 1,
        Down => 2,
        DownUnowned => 3,
        Idle => 4,
        Abandoned => 5,
        Ended => 6,
    }
}

/// The column of an event. A new event does not compile until it has one.
fn column_of(column: Column) -> usize {
    match column {
        Column::On(Event::Arrival) => 0,
        Column::On(Event::Departure) => 1,
        Column::On(Event::LastDeparture) => 2,
        Column::On(Event::Traffic) => 3,
        Column::On(Event::OwnerGone) => 4,
        Column::On(Event::ServerExited) => 5,
        Column::On(Event::ServerStarted) => 6,
        Column::On(Event::StopRequested) => 7,
        Column::On(Event::Advance) => 8,
        Column::AtDeadline => 9,
    }
}

/// A lifetime in this state, reached by public calls, with as many clients as the event needs.
fn in_state(state: State, column: Column) -> Lifetime {
    let now = Moment::START;
    let mut life = Lifetime::new(Policy::SHARED, Owner::Watched, now);

    let clients: &[ClientId] = match (state, column) {
        (Idle | Abandoned, _) => &[],
        (_, Column::On(Event::Departure)) => &[FIRST, SECOND],
        _ => &[FIRST],
    };
    for &id in clients {
        life.handle_client_attached(id, Liveness::Unwatchable, now);
    }
    match state {
        Serving | Idle => {}
        ServingUnowned | Abandoned => life.handle_owner_gone(now),
        Down => life.handle_server_exited(now),
        DownUnowned => {
            life.handle_server_exited(now);
            life.handle_owner_gone(now);
        }
        Ended => life.handle_stop(now),
    }
    life
}

/// Makes the public call of this event. Without clients, it names an unknown client: the nearest that a caller can come
/// to these cells.
fn hand_in(life: &mut Lifetime, column: Column) {
    let before_deadline = Moment::from_nanos(1);
    match column {
        Column::On(Event::Arrival) => {
            life.handle_client_attached(THIRD, Liveness::Unwatchable, before_deadline)
        }
        Column::On(Event::Departure) => life.handle_client_gone(FIRST, before_deadline),
        Column::On(Event::LastDeparture) => life.handle_client_gone(FIRST, before_deadline),
        Column::On(Event::Traffic) => life.handle_traffic(FIRST, before_deadline),
        Column::On(Event::OwnerGone) => life.handle_owner_gone(before_deadline),
        Column::On(Event::ServerExited) => life.handle_server_exited(before_deadline),
        Column::On(Event::ServerStarted) => life.handle_server_started(before_deadline),
        Column::On(Event::StopRequested) => life.handle_stop(before_deadline),
        Column::On(Event::Advance) => match life.next_timeout() {
            Some(deadline) => life.advance(Moment::from_nanos(deadline.as_nanos() - 1)),
            None => life.advance(before_deadline),
        },
        Column::AtDeadline => life.advance(life.next_timeout().unwrap_or(Moment::END)),
    }
}

fn of(verdict: super::Verdict) -> Expected {
    match verdict.reason {
        Reason::LingerOver { .. } => Expected::Linger,
        Reason::OwnerGone { .. } => Expected::Grace,
        Reason::Silent { .. } => Expected::Silence,
        Reason::ServerExited => Expected::Server,
        Reason::StopRequested => Expected::Stop,
    }
}
