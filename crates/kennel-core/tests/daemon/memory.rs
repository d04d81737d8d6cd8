//! Whom a daemon reads, and whom it disconnects, when it holds much memory.

use std::cell::RefCell;
use std::time::Duration;

use kennel_core::engine::daemon::{
    BACKLOG, ClientMemory, FULL_QUEUE, HalfLine, HoldUpTimer, MIN_PER_CONNECTION, MemoryUse,
    MemoryWatch, RECHECK_INTERVAL, Reader, STALL_TIMEOUT, ServerThrottle, SlotId,
    excess_unadmitted, has_much_unread, has_room_for_hello, is_stalled,
};
use kennel_core::lifetime::ClientId;
use kennel_core::time::Moment;

use super::SECOND;

const MIB: usize = 1 << 20;
const MAX_LINE: usize = 8 * MIB;
/// Held bytes from which on memory is short.
const LIMIT: usize = 2 * MAX_LINE + 4 * MIB;
/// The same from which on much is held.
const MUCH: usize = MAX_LINE + 4 * MIB;

fn now() -> Moment {
    Moment::START + Duration::from_secs(1000)
}

fn ago(length: Duration) -> Moment {
    Moment::START + ((now() - Moment::START) - length)
}

/// An admitted client that has just sent so much of a line.
fn client(number: u64, half_line: usize) -> ClientMemory {
    ClientMemory {
        client: ClientId(number),
        slot: Some(SlotId(1)),
        is_admitted: true,
        is_leaving: false,
        half_line,
        half_line_memory: half_line,
        half_line_since: (half_line > MIN_PER_CONNECTION).then(now),
        waits_since: None,
        last_read: now(),
        unread: 0,
        unread_since: None,
        holds_up_others: false,
    }
}

/// A client that has taken nothing of so many bytes for so long.
fn reader(number: u64, unread: usize, since: Duration) -> ClientMemory {
    ClientMemory {
        unread,
        unread_since: Some(ago(since)),
        ..client(number, 0)
    }
}

fn held(clients: Vec<ClientMemory>, elsewhere: usize) -> MemoryUse {
    MemoryUse {
        max_line: MAX_LINE,
        clients,
        elsewhere,
    }
}

fn of(number: u64) -> Reader {
    Reader::Client {
        client: ClientId(number),
        server_has_queue: false,
    }
}

/// Whether the reader has room, and whose half lines were dropped for it.
fn room(all: MemoryUse, reader: Reader) -> (bool, Vec<u64>) {
    room_beside(all, reader, &[])
}

/// The same, where these clients have sent more that was not read yet.
fn room_beside(mut all: MemoryUse, reader: Reader, have_input: &[u64]) -> (bool, Vec<u64>) {
    let lengths: Vec<_> = all.clients.clone();
    let dropped = RefCell::new(Vec::new());
    let has_input = |id: ClientId| have_input.contains(&id.0);
    let has_room = all.make_room(reader, now(), has_input, |id| {
        dropped.borrow_mut().push(id.0);
        let dropped = lengths.iter().find(|it| it.client == id);
        dropped.map_or(0, |it| it.half_line_memory)
    });
    (has_room, dropped.into_inner())
}

fn disconnected(all: &MemoryUse) -> Vec<u64> {
    let stalled = all.stalled(now(), |_| false);
    stalled.clients.into_iter().map(|id| id.0).collect()
}

#[test]
fn a_line_has_room_while_little_is_held() {
    let all = held(vec![client(1, MIB)], LIMIT - MIB);
    assert_eq!(room(all, of(1)), (true, vec![]));
}

#[test]
fn half_lines_of_clients_that_are_not_admitted_are_dropped_first_then_stalled_ones() {
    let stalled = |number, seconds| ClientMemory {
        last_read: ago(SECOND * seconds),
        ..client(number, MIB)
    };
    let unadmitted = ClientMemory {
        is_admitted: false,
        ..client(4, MIB)
    };
    let clients = || vec![client(1, MIB), stalled(2, 2), stalled(3, 9), unadmitted];
    let excess = |bytes| held(clients(), LIMIT - 4 * MIB + bytes);
    assert_eq!(room(excess(1), of(1)), (true, vec![4]));
    assert_eq!(room(excess(MIB + 1), of(1)), (true, vec![4, 3]));
    assert_eq!(room(excess(3 * MIB), of(1)), (true, vec![4, 3, 2]));
    // The reader's own line is longer than a medium one: it has no room beyond the limit.
    assert_eq!(room(excess(3 * MIB + 1), of(1)), (false, vec![4, 3, 2]));
}

#[test]
fn a_half_line_that_waits_for_memory_is_not_stalled_and_one_that_comes_slowly_is() {
    let waits = ClientMemory {
        last_read: ago(3 * SECOND),
        waits_since: Some(ago(SECOND / 2)),
        ..client(2, MIB)
    };
    let all = held(vec![client(1, MIB), waits], LIMIT);
    assert_eq!(room(all, of(1)), (false, vec![]));
    // 1 MiB has 4 times 256 KiB: a second for each, and two more.
    let since = |seconds| ClientMemory {
        half_line_since: Some(ago(seconds)),
        ..client(2, MIB)
    };
    let in_time = held(vec![client(1, MIB), since(6 * SECOND)], LIMIT);
    assert_eq!(room(in_time, of(1)), (false, vec![]));
    let too_slow = since(6 * SECOND + Duration::from_millis(1));
    let too_slow = held(vec![client(1, 0), too_slow], LIMIT);
    assert_eq!(room(too_slow, of(1)), (true, vec![2]));
}

#[test]
fn a_medium_line_has_room_beyond_the_limit_less_if_its_server_is_behind() {
    let medium = |excess: usize| {
        let clients = vec![client(1, 100 << 10)];
        held(
            clients,
            LIMIT - (100 << 10) + excess + 3 * MIN_PER_CONNECTION,
        )
    };
    let behind = Reader::Client {
        client: ClientId(1),
        server_has_queue: true,
    };
    assert_eq!(room(medium(8 * MIB), of(1)), (true, vec![]));
    assert_eq!(room(medium(8 * MIB + 1), of(1)), (false, vec![]));
    assert_eq!(room(medium(2 * MIB), behind), (true, vec![]));
    assert_eq!(room(medium(2 * MIB + 1), behind), (false, vec![]));
    let server = Reader::Server(100 << 10);
    assert_eq!(room(medium(12 * MIB), server), (true, vec![]));
    assert_eq!(room(medium(12 * MIB + 1), server), (false, vec![]));
    assert_eq!(room(medium(1), Reader::Server(MIB)), (false, vec![]));
}

#[test]
fn for_a_medium_line_the_oldest_half_lines_of_others_are_dropped() {
    let old = |number, seconds| ClientMemory {
        half_line_since: Some(ago(SECOND * seconds)),
        ..client(number, MIB)
    };
    let clients = vec![client(1, 0), old(2, 2), old(3, 4), client(4, MIB)];
    let elsewhere = LIMIT - 3 * MIB + 5 * 3 * MIN_PER_CONNECTION + 8 * MIB;
    assert_eq!(room(held(clients, elsewhere), of(1)), (true, vec![3]));
}

#[test]
fn a_half_line_that_the_daemon_had_no_time_for_does_not_stall() {
    let slow = |number| ClientMemory {
        last_read: ago(SECOND),
        ..client(number, MIB)
    };
    let clients = || vec![client(1, 0), slow(2), slow(3)];
    let all = || held(clients(), LIMIT);
    assert_eq!(room_beside(all(), of(1), &[2]).1, [3]);
    assert_eq!(room_beside(all(), of(1), &[2, 3]).1, [0; 0]);
}

#[test]
fn many_clients_of_one_server_do_not_take_the_room_of_another_servers() {
    let old = |number, slot, length| ClientMemory {
        slot: Some(SlotId(slot)),
        half_line_since: Some(ago(2 * SECOND)),
        ..client(number, length)
    };
    let (short, long) = (100 << 10, 200 << 10);
    let clients = || {
        vec![
            old(1, 1, short),
            old(2, 1, long),
            old(3, 2, long),
            old(4, 2, long),
        ]
    };
    let full = || held(clients(), LIMIT + 9 * MIB);
    assert_eq!(room(full(), of(1)).1, [3, 4, 2]);
    assert_eq!(room(full(), of(3)).1, [4]);
}

#[test]
fn a_half_line_that_waits_for_memory_is_as_old_as_its_wait() {
    let waits = |length| ClientMemory {
        half_line_since: Some(ago(9 * SECOND)),
        waits_since: Some(ago(length)),
        ..client(2, 100 << 10)
    };
    let beside = |length| held(vec![client(1, 0), waits(length)], LIMIT + 9 * MIB);
    assert_eq!(room(beside(SECOND), of(1)).1, [2]);
    assert_eq!(room(beside(SECOND / 2), of(1)).1, [0; 0]);
}

#[test]
fn what_a_drop_does_not_free_is_not_counted_as_free() {
    let stalled = |number| ClientMemory {
        last_read: ago(2 * SECOND),
        ..client(number, MIB)
    };
    let mut all = held(
        vec![client(1, MIB), stalled(2), stalled(3)],
        LIMIT - 2 * MIB,
    );
    let mut dropped = 0;
    let drop = |_| {
        dropped += 1;
        0
    };
    assert!(!all.make_room(of(1), now(), |_| false, drop));
    assert_eq!(dropped, 2);
}

#[test]
fn a_half_line_without_room_waits_five_seconds_if_it_is_medium_and_is_dropped_else() {
    let all = held(vec![client(1, 100 << 10), client(2, MIB)], LIMIT);
    let what = |number, since| all.half_line(ClientId(number), since, now());
    assert_eq!(
        what(1, now()),
        HalfLine::WaitUntil(now() + RECHECK_INTERVAL)
    );
    assert_eq!(what(1, ago(STALL_TIMEOUT)), HalfLine::Drop);
    assert_eq!(what(2, now()), HalfLine::Drop);
    // Memory is free in a moment.
    let leaving = ClientMemory {
        is_leaving: true,
        ..reader(3, MIB, SECOND)
    };
    let all = held(vec![client(2, MIB), leaving], LIMIT);
    let what = all.half_line(ClientId(2), now(), now());
    assert_eq!(what, HalfLine::WaitUntil(now() + RECHECK_INTERVAL));
}

#[test]
fn stalled_clients_are_disconnected_those_with_the_most_unread_bytes_first() {
    let clients = vec![
        reader(1, 2 * MIB, STALL_TIMEOUT),
        reader(2, 3 * MIB, STALL_TIMEOUT),
        reader(3, 4 * MIB, SECOND),
        reader(4, BACKLOG - 1, STALL_TIMEOUT),
    ];
    assert_eq!(disconnected(&held(clients.clone(), MUCH)), [] as [u64; 0]);
    assert_eq!(disconnected(&held(clients.clone(), MUCH + 1)), [2]);
    assert_eq!(
        disconnected(&held(clients.clone(), MUCH + 3 * MIB + 1)),
        [2, 1]
    );
    // While memory is short, less is a backlog.
    assert_eq!(disconnected(&held(clients, LIMIT + 9 * MIB)), [2, 1, 4]);
}

#[test]
fn a_client_that_would_take_something_now_is_not_stalled() {
    let all = held(vec![reader(1, MIB, STALL_TIMEOUT)], LIMIT + 1);
    let stalled = all.stalled(now(), |_| true);
    assert!(stalled.clients.is_empty());
    assert_eq!(stalled.check_again, now() + RECHECK_INTERVAL);
}

#[test]
fn a_client_that_reads_but_holds_up_others_for_too_long_is_disconnected() {
    let slow = |holds_up_others| ClientMemory {
        holds_up_others,
        ..reader(1, MIB, SECOND)
    };
    let others = || reader(2, BACKLOG - 1, STALL_TIMEOUT);
    for (holds_up_others, dropped) in [(false, vec![]), (true, vec![1])] {
        let all = held(vec![slow(holds_up_others), others()], MUCH + 1);
        let stalled = all.stalled(now(), |_| true);
        let clients: Vec<u64> = stalled.clients.iter().map(|it| it.0).collect();
        assert_eq!(clients, dropped);
    }
}

#[test]
fn a_hold_up_with_short_breaks_is_one_and_a_long_break_ends_it() {
    let mut hold_up = HoldUpTimer::default();
    let at = |seconds| Moment::START + seconds * SECOND;
    for second in (0..40).step_by(4) {
        hold_up.record(at(second));
        assert!(!hold_up.is_too_long(), "after {second} s");
    }
    hold_up.record(at(40));
    assert!(hold_up.is_too_long());
    hold_up.record(at(45));
    assert!(!hold_up.is_too_long());
}

#[test]
fn nobody_is_disconnected_while_a_backlog_is_about_to_be_freed() {
    let leaving = ClientMemory {
        is_leaving: true,
        ..reader(1, MIB, STALL_TIMEOUT)
    };
    let all = held(vec![leaving, reader(2, MIB, STALL_TIMEOUT)], LIMIT + 1);
    assert_eq!(disconnected(&all), [] as [u64; 0]);
}

#[test]
fn a_client_that_lets_16_mib_wait_for_5_s_is_stalled_whatever_is_held() {
    assert!(has_much_unread(16 * MIB + 1) && !has_much_unread(16 * MIB));
    assert!(is_stalled(Some(ago(STALL_TIMEOUT)), now()));
    assert!(!is_stalled(Some(ago(SECOND)), now()) && !is_stalled(None, now()));
}

#[test]
fn memory_is_short_beyond_two_longest_lines_and_is_counted_every_millisecond() {
    let mut watch = MemoryWatch::new(MAX_LINE);
    assert!(watch.is_due(now()));
    watch.counted(LIMIT, now());
    assert!(!watch.is_short() && !watch.is_due(now()));
    assert!(watch.is_due(now() + Duration::from_millis(1)));
    watch.counted(LIMIT + 1, now());
    assert!(
        watch.is_short()
            && watch.exceeds_small(MIN_PER_CONNECTION + 1)
            && !watch.exceeds_small(MIN_PER_CONNECTION)
    );
}

#[test]
fn a_server_is_not_read_while_a_client_has_a_backlog_and_much_is_held() {
    let mut watch = MemoryWatch::new(MAX_LINE);
    let memory = Some(ServerThrottle::Memory);
    watch.counted(0, now());
    assert_eq!(watch.server_throttle(&[0, BACKLOG], MUCH + 1), memory);
    assert_eq!(watch.server_throttle(&[0, BACKLOG], MUCH), None);
    assert_eq!(watch.server_throttle(&[0, BACKLOG - 1], MUCH + 1), None);
    // Alone, a client holds up its server in any case.
    let only = Some(ServerThrottle::OnlyClient);
    assert_eq!(watch.server_throttle(&[FULL_QUEUE], 0), only);
    assert_eq!(watch.server_throttle(&[FULL_QUEUE - 1], 0), None);
    assert_eq!(watch.server_throttle(&[FULL_QUEUE, 0], 0), None);
    watch.counted(LIMIT + 1, now());
    assert_eq!(
        watch.server_throttle(&[MIN_PER_CONNECTION], LIMIT + 1),
        memory
    );
    assert_eq!(
        watch.server_throttle(&[MIN_PER_CONNECTION - 1], LIMIT + 1),
        None
    );
}

#[test]
fn free_memory_is_returned_now_and_then_while_much_is_held_and_once_after() {
    let mut watch = MemoryWatch::new(MAX_LINE);
    assert!(!watch.counted(MUCH, now()));
    assert!(watch.counted(MUCH + 1, now()));
    assert!(!watch.counted(MUCH + 1, now()));
    assert!(watch.counted(MUCH + 1, now() + RECHECK_INTERVAL));
    assert!(watch.counted(0, now() + RECHECK_INTERVAL));
    assert!(!watch.counted(0, now() + RECHECK_INTERVAL));
}

#[test]
fn of_257_connections_without_a_first_line_the_first_is_refused() {
    let refused = |count| excess_unadmitted((1..=count).map(ClientId));
    assert_eq!(refused(0), None);
    assert_eq!(refused(256), None);
    assert_eq!(refused(257), Some(ClientId(1)));
}

#[test]
fn hellos_of_500_clients_are_kept_and_of_2000_where_lines_may_be_long() {
    let each = 16 << 10;
    let fits =
        |clients: usize, max_line| has_room_for_hello(each, clients * each, clients, max_line);
    assert!(fits(511, MIB) && !fits(512, MIB));
    assert!(fits(2047, usize::MAX) && !fits(2048, usize::MAX));
}
