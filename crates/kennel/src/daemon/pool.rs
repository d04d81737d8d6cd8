//! All servers of the daemon, and which one a client gets.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use kennel_core::engine::daemon::Restarts;
use kennel_core::engine::daemon::SlotKey;
use kennel_core::hello::ClientHello;
use kennel_core::lifetime::ClientId;
use kennel_core::mux::Class;

use super::client::Link;
use super::house::House;
use super::server;
use super::station::Station;
use super::tasks::{self, Notify};

#[derive(Default)]
pub(super) struct Pool {
    /// From its first client until nothing is left of its tree.
    stations: RefCell<Vec<Rc<Station>>>,
    restarts: RefCell<Restarts>,
    emptied: Notify,
}

impl Pool {
    /// The server of this class, or a new one; `Err` says why the client must go solo.
    pub(super) fn place(
        &self,
        house: &Rc<House>,
        id: ClientId,
        link: &Rc<Link>,
        class: Class,
    ) -> Result<Rc<Station>, &'static str> {
        let open = |station: &&Rc<Station>| station.class == class && !station.closing.is_up();
        let found = match class.is_shared() {
            true => self.stations.borrow().iter().find(open).cloned(),
            false => None,
        };
        // Whoever comes gets what is there now, not what was.
        let found = found.filter(|station| !station.is_replaced(house));
        let station = match found {
            Some(station) => {
                station.newcomers()?;
                station
            }
            None => self.open(house, class, link.wants()),
        };
        station.join(house, id, link);
        house.stir();
        Ok(station)
    }

    fn open(&self, house: &Rc<House>, class: Class, hello: Rc<ClientHello>) -> Rc<Station> {
        let slot = SlotKey::new(&class, &hello.session);
        let start_at = self.restarts.borrow().start_at(&slot, house.now());
        let start_at = house.instant(start_at);
        let station = Rc::new(Station::new(house, class, hello, start_at));
        self.stations.borrow_mut().push(Rc::clone(&station));
        tasks::spawn(server::attend(Rc::clone(house), Rc::clone(&station)));
        station
    }

    /// A server is lost. `Err`: too many ended before they answered, and the next is started on request, then at the
    /// earliest.
    pub(super) fn lost(&self, house: &House, station: &Station) -> Result<Instant, Instant> {
        let mut restarts = self.restarts.borrow_mut();
        let next = restarts.lost(station.key(), station.has_answered(), house.now());
        next.map(|at| house.instant(at))
            .map_err(|at| house.instant(at))
    }

    /// Nothing is left of it, and its warden is reaped.
    pub(super) fn ended(&self, station: &Rc<Station>) {
        station.close();
        let mut stations = self.stations.borrow_mut();
        stations.retain(|other| !Rc::ptr_eq(other, station));
        drop(stations);
        self.emptied.notify_waiters();
    }

    /// Nobody will come to those that wait for somebody.
    pub(super) fn close_deserted(&self) {
        for station in self.stations.borrow().iter() {
            if station.clients() == 0 {
                station.close();
            }
        }
    }

    /// Nobody is served any more.
    pub(super) fn close_all(&self) {
        for station in self.stations.borrow().iter() {
            station.close();
        }
    }

    /// One that another program opened.
    pub(super) fn has(&self, station: &Rc<Station>) {
        self.stations.borrow_mut().push(Rc::clone(station));
    }

    /// All stations, in order.
    pub(super) fn all(&self) -> Vec<Rc<Station>> {
        self.stations.borrow().clone()
    }

    /// Whether nobody waits for anything.
    pub(super) fn is_quiet(&self) -> bool {
        self.stations
            .borrow()
            .iter()
            .all(|station| station.is_quiet())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.stations.borrow().is_empty()
    }

    /// The longest of all ladders.
    pub(super) fn ladder(&self) -> Duration {
        let stations = self.stations.borrow();
        let ladders = stations.iter().map(|station| {
            let ladder = server::ladder(&station.hello);
            ladder.after_eof + ladder.after_term
        });
        ladders.max().unwrap_or_default()
    }

    pub(super) fn each<T>(&self, look: impl FnMut(&Station) -> T) -> Vec<T> {
        let stations = self.stations.borrow();
        stations
            .iter()
            .map(|station| &**station)
            .map(look)
            .collect()
    }

    /// Waits until nothing is left of those that had this station's slot before it.
    pub(super) async fn until_first(&self, station: &Rc<Station>) {
        let slot = station.key();
        let is_first = || {
            let stations = self.stations.borrow();
            let first = stations.iter().find(|other| other.key() == slot);
            first.is_none_or(|first| Rc::ptr_eq(first, station))
        };
        while !is_first() {
            self.emptied.notified().await;
        }
    }
}
