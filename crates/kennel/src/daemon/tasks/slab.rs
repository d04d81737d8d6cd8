//! Things by number. A number leads to its thing, or to none once that is gone.

/// Where something is: its place, and how many had that place before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Number(u64);

impl Number {
    fn new(place: usize, turn: u32) -> Number {
        Number(u64::from(turn) << 32 | place as u64)
    }

    fn place(self) -> usize {
        self.0 as u32 as usize
    }

    fn turn(self) -> u32 {
        (self.0 >> 32) as u32
    }

    pub(super) fn to_u64(self) -> u64 {
        self.0
    }

    pub(super) fn from_u64(number: u64) -> Number {
        Number(number)
    }
}

#[derive(Debug)]
pub(super) struct Slab<T> {
    places: Vec<Place<T>>,
    free: Vec<usize>,
}

#[derive(Debug)]
struct Place<T> {
    turn: u32,
    thing: Option<T>,
}

impl<T> Default for Slab<T> {
    fn default() -> Slab<T> {
        Slab {
            places: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl<T> Slab<T> {
    /// Keeps what is made for the number it gets.
    pub(super) fn insert(&mut self, make: impl FnOnce(Number) -> T) -> Number {
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place {
                turn: 0,
                thing: None,
            });
            self.places.len() - 1
        });
        let number = Number::new(place, self.places[place].turn);
        self.places[place].thing = Some(make(number));
        number
    }

    pub(super) fn get(&self, number: Number) -> Option<&T> {
        let place = self.places.get(number.place())?;
        place.thing.as_ref().filter(|_| place.turn == number.turn())
    }

    pub(super) fn remove(&mut self, number: Number) -> Option<T> {
        let place = self.places.get_mut(number.place())?;
        if place.turn != number.turn() {
            return None;
        }
        let thing = place.thing.take()?;
        place.turn = place.turn.wrapping_add(1);
        self.free.push(number.place());
        Some(thing)
    }

    /// All of them, which leaves none.
    pub(super) fn take_all(&mut self) -> Vec<T> {
        let places = std::mem::take(self).places;
        places.into_iter().filter_map(|place| place.thing).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_leads_to_its_thing_and_to_no_later_one() {
        let mut slab = Slab::default();
        let one = slab.insert(|_| "one");
        let two = slab.insert(|_| "two");
        assert_eq!(slab.remove(one), Some("one"));
        let three = slab.insert(|_| "three");
        assert_eq!(slab.get(one), None);
        assert_eq!(slab.remove(one), None);
        assert_eq!(slab.get(two), Some(&"two"));
        assert_eq!(slab.get(Number::from_u64(three.to_u64())), Some(&"three"));
        assert_eq!(slab.take_all(), ["three", "two"]);
        assert_eq!(slab.get(two), None);
    }
}
