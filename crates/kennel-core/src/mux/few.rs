//! A list that usually has one member, which needs no memory of its own then.

use std::ops::Deref;

use serde::{Deserialize, Serialize};

/// A list, and as text one like any other.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(
    from = "Vec<T>",
    into = "Vec<T>",
    bound(serialize = "T: Serialize + Clone")
)]
pub(super) enum Few<T> {
    One(T),
    Others(Vec<T>),
}

impl<T> Few<T> {
    pub(super) fn none() -> Few<T> {
        Few::Others(Vec::new())
    }

    pub(super) fn push(&mut self, member: T) {
        *self = match std::mem::replace(self, Few::none()) {
            Few::One(first) => Few::Others(vec![first, member]),
            Few::Others(list) if list.is_empty() => Few::One(member),
            Few::Others(mut list) => {
                list.push(member);
                Few::Others(list)
            }
        };
    }

    /// Takes out the first that is such a one.
    pub(super) fn take(&mut self, such: impl Fn(&T) -> bool) -> Option<T> {
        let place = self.iter().position(such)?;
        match std::mem::replace(self, Few::none()) {
            Few::One(member) => Some(member),
            Few::Others(mut list) => {
                let member = list.remove(place);
                *self = Few::Others(list);
                Some(member)
            }
        }
    }
}

impl<T> Deref for Few<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Few::One(member) => std::slice::from_ref(member),
            Few::Others(list) => list,
        }
    }
}

impl<'a, T> IntoIterator for &'a Few<T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<T> From<Vec<T>> for Few<T> {
    fn from(list: Vec<T>) -> Few<T> {
        Few::Others(list)
    }
}

impl<T> From<Few<T>> for Vec<T> {
    fn from(few: Few<T>) -> Vec<T> {
        match few {
            Few::One(member) => vec![member],
            Few::Others(list) => list,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_list_that_a_vector_is() {
        let mut few = Few::none();
        for count in 0..4 {
            assert_eq!(few[..], *(0..count).collect::<Vec<_>>());
            let text = serde_json::to_string(&few).expect("numbers have a text");
            let again: Few<i32> = serde_json::from_str(&text).expect("it is its own");
            assert_eq!(again[..], few[..]);
            few.push(count);
        }
        assert_eq!(few.take(|member| *member == 7), None);
        for count in [1, 0, 3, 2] {
            assert_eq!(few.take(|member| *member == count), Some(count));
        }
        assert!(few.is_empty());
        few.push(5);
        assert_eq!(few.take(|_| true), Some(5));
    }
}
