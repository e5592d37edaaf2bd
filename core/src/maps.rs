//! What maps that are cheap to clone lack.

use imbl::OrdMap;

/// Changes what is at a key; what is not there begins as its default. One search where it is there: `entry` takes two.
pub fn change<K: Ord + Clone, V: Clone + Default, T>(
    map: &mut OrdMap<K, V>,
    key: &K,
    work: impl FnOnce(&mut V) -> T,
) -> T {
    if let Some(value) = map.get_mut(key) {
        return work(value);
    }
    let mut value = V::default();
    let done = work(&mut value);
    map.insert(key.clone(), value);
    done
}

#[cfg(test)]
mod tests {
    use super::change;

    #[test]
    fn what_is_there_is_changed_and_what_is_not_begins() {
        let mut map = imbl::OrdMap::new();
        assert_eq!(change(&mut map, &"a", |n: &mut u32| std::mem::replace(n, 7)), 0);
        assert_eq!(change(&mut map, &"a", |n| std::mem::replace(n, 8)), 7);
        assert_eq!(map, imbl::ordmap! {"a" => 8});
    }
}
