//! The event hub: in order, lag is said, nothing is left behind.

use std::time::Duration;

use countersign::run::event::EventBody;
use countersign::run::ids::RunUid;
use countersign::store::hub::{Heard, Hub, Subscription};
use uuid::Uuid;

use super::draft::{Draft, tenant};

/// What a reader hears next; fails after five seconds of silence.
pub(super) async fn heard<K: Clone + Eq + std::hash::Hash, B>(subscription: &mut Subscription<K, B>) -> Heard {
    tokio::time::timeout(Duration::from_secs(5), subscription.next()).await.expect("something is heard")
}

fn seq(heard: &Heard) -> Option<i64> {
    match heard {
        Heard::Event(event) => Some(event.seq),
        Heard::Lagged => None,
    }
}

#[tokio::test]
async fn every_reader_of_a_run_hears_its_events_in_order_and_no_others() {
    let (hub, run, other) = (Hub::new(), Draft::new("acme", "r-1"), Draft::new("acme", "r-2"));
    let (mut one, mut two) = (hub.subscribe(&run.tenant, run.uid), hub.subscribe(&run.tenant, run.uid));
    hub.announce(&other.tenant, other.uid).tell(&[other.event(7)]).unwrap();
    hub.announce(&run.tenant, run.uid).tell(&[run.event(1), run.event(2)]).unwrap();
    hub.announce(&run.tenant, run.uid).tell(&[run.event(3)]).unwrap();
    for reader in [&mut one, &mut two] {
        for wanted in 1..=3 {
            assert_eq!(seq(&heard(reader).await), Some(wanted));
        }
    }
}

#[tokio::test]
async fn a_reader_of_a_tenant_hears_status_and_result_of_its_runs_only() {
    let (hub, run) = (Hub::new(), Draft::new("acme", "r-1"));
    let mut reader = hub.subscribe_tenant(&run.tenant);
    let mut turn = run.event(2);
    turn.body = EventBody::TurnStarted { turn: 1, model: "m".to_owned() };
    hub.announce(&tenant("globex"), RunUid(Uuid::new_v4())).tell(&[run.event(1)]).unwrap();
    hub.announce(&run.tenant, run.uid).tell(&[turn, run.event(3)]).unwrap();
    let Heard::Event(event) = heard(&mut reader).await else { panic!("lagged") };
    assert_eq!((event.seq, event.kind.as_str()), (3, "run-status"));
    assert!(event.body.contains(r#""run_id":"r-1""#));
}

#[tokio::test]
async fn a_slow_reader_is_told_that_it_lags_and_then_goes_on() {
    let (hub, run) = (Hub::new(), Draft::new("acme", "r-1"));
    let mut reader = hub.subscribe(&run.tenant, run.uid);
    let events: Vec<_> = (1..=10_000).map(|seq| run.event(seq)).collect();
    hub.announce(&run.tenant, run.uid).tell(&events).unwrap();
    assert_eq!(heard(&mut reader).await, Heard::Lagged);
    let first = seq(&heard(&mut reader).await).unwrap();
    assert!(first > 1);
    let mut last = first;
    while last < 10_000 {
        let next = seq(&heard(&mut reader).await).unwrap();
        assert_eq!(next, last + 1);
        last = next;
    }
}

#[tokio::test]
async fn nothing_is_left_of_what_nobody_reads() {
    let (hub, run) = (Hub::new(), Draft::new("acme", "r-1"));
    hub.announce(&run.tenant, run.uid).tell(&[run.event(1)]).unwrap();
    assert_eq!(hub.followed(), (0, 0));
    let (one, two) = (hub.subscribe(&run.tenant, run.uid), hub.subscribe(&run.tenant, run.uid));
    let of_tenant = hub.subscribe_tenant(&run.tenant);
    assert_eq!(hub.followed(), (1, 1));
    drop(one);
    assert_eq!(hub.followed(), (1, 1));
    drop((two, of_tenant));
    assert_eq!(hub.followed(), (0, 0));
}
