//! What is kept, for how long, and what goes.

use std::time::SystemTime;

use super::*;

/// Makes it look as if a folder had not been used for a day.
fn leave_alone(folder: &Path) {
    let day = Duration::from_secs(24 * 3600);
    fs::File::open(folder).unwrap().set_modified(SystemTime::now() - day).unwrap();
}

#[tokio::test]
async fn equal_requests_install_once_also_after_a_restart() {
    let world = World::new(INSTALL);
    let first = install(&world.cache(), &["b", "a>=1"]).await.unwrap();
    let cache = world.cache();
    assert_eq!(install(&cache, &["A>=1", "b", "b"]).await.unwrap(), first);
    assert_eq!(world.runs().len(), 1);
    install(&cache, &["b"]).await.unwrap();
    assert_eq!(world.runs().len(), 2);
}

#[tokio::test]
async fn requests_at_the_same_time_install_once() {
    let world = World::new(INSTALL);
    let cache = world.cache();
    let sets = futures_util::future::join_all((0..8).map(|_| install(&cache, &["numpy"]))).await;
    assert!(sets.iter().all(|set| set.is_ok() && *set == sets[0]), "{sets:?}");
    assert_eq!(world.runs().len(), 1);
}

#[tokio::test]
async fn requests_that_lead_to_the_same_versions_share_them() {
    let world = World::new(INSTALL);
    let cache = world.cache();
    let first = install(&cache, &["numpy"]).await.unwrap();
    assert_eq!(install(&cache, &["numpy==1.0"]).await.unwrap(), first);
    assert_eq!((world.runs().len(), names(&world.path("cache/sets")).len()), (2, 1));
}

#[tokio::test]
async fn names_without_a_version_are_looked_for_again_and_named_versions_are_not() {
    let world = World::new(INSTALL);
    let mut settings = world.settings();
    settings.ttl = Duration::ZERO;
    let cache = world.open(settings);
    let old = install(&cache, &["numpy"]).await.unwrap();
    let pinned = install(&cache, &["requests==1.0"]).await.unwrap();
    fs::write(world.path("version"), "2.0").unwrap();
    let new = install(&cache, &["numpy"]).await.unwrap();
    assert_eq!(names(&new), ["numpy", "numpy-2.0.dist-info"]);
    assert!(old != new && old.is_dir(), "a script may still use the old one");
    assert_eq!(install(&cache, &["requests==1.0"]).await.unwrap(), pinned);
    assert_eq!(world.runs().len(), 3);
}

#[tokio::test]
async fn another_interpreter_or_index_does_not_get_what_was_installed_for_one() {
    let world = World::new(INSTALL);
    let first = install(&world.cache(), &["numpy"]).await.unwrap();
    let mut settings = world.settings();
    settings.index_url = Some(Secret::new("https://own.example/"));
    let second = install(&world.open(settings), &["numpy"]).await.unwrap();
    assert_eq!(world.runs().len(), 2);
    assert_ne!(first, second, "of two indexes, the same name and version may be something else");
}

#[tokio::test]
async fn what_was_not_used_for_longest_goes_when_there_is_too_much() {
    let world = World::new(INSTALL);
    let mut settings = world.settings();
    settings.max_cache = 12;
    let cache = world.open(settings);
    let (a, b) = (install(&cache, &["a"]).await.unwrap(), install(&cache, &["b"]).await.unwrap());
    let c = install(&cache, &["c"]).await.unwrap();
    assert!(a.is_dir() && b.is_dir() && c.is_dir(), "what was used just now stays, though there is too much");

    leave_alone(&a);
    leave_alone(&b);
    install(&cache, &["a"]).await.unwrap();
    let d = install(&cache, &["d"]).await.unwrap();
    assert!(a.is_dir() && !b.exists() && c.is_dir() && d.is_dir());
    assert_eq!(names(&world.path("cache/asked")).len(), 3, "and what led to it");
    assert_eq!(names(&world.path("cache/new")), Vec::<String>::new());

    // It is installed again when it is wanted.
    install(&cache, &["b"]).await.unwrap();
    assert_eq!(world.runs().len(), 5);
}

#[tokio::test]
async fn what_was_left_half_done_is_removed_at_the_next_start() {
    let world = World::new(INSTALL);
    drop(world.cache());
    let left = world.path("cache/new/1-left");
    fs::create_dir_all(left.join("target/numpy")).unwrap();
    fs::set_permissions(left.join("target"), fs::Permissions::from_mode(0o555)).unwrap();
    leave_alone(&left);
    // Somebody is at work on this one, and this one is too young to be locked already.
    let (busy, young) = (world.path("cache/new/2-busy"), world.path("cache/new/3-young"));
    fs::create_dir(&busy).unwrap();
    fs::create_dir(&young).unwrap();
    leave_alone(&busy);
    let lock = fs::File::open(&busy).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();

    drop(world.cache());
    assert!(!left.exists() && busy.exists() && young.exists());
    drop(lock);
    drop(world.cache());
    assert!(!busy.exists());
}

#[tokio::test]
async fn a_record_that_cannot_be_read_is_as_good_as_none() {
    let world = World::new(INSTALL);
    install(&world.cache(), &["numpy"]).await.unwrap();
    for file in names(&world.path("cache/asked")) {
        fs::write(world.path("cache/asked").join(file), "{").unwrap();
    }
    install(&world.cache(), &["numpy"]).await.unwrap();
    assert_eq!(world.runs().len(), 2);
}
