//! The contract, for the bus in memory.

use toolbus_broker::embedded::Embedded;
use toolbus_bus::{Bus, Ownership, Routing, Subscription};

use crate::fixture::{subscription, to_queue, to_topic, unique};

crate::contract::tests_of!(Embedded::new());

#[tokio::test]
async fn a_queue_of_a_client_alone_is_gone_with_the_client() {
    let bus = Embedded::new();
    let client = bus.connect();
    let queue = unique("mine");
    let _replies = client.consume(Subscription { ownership: Ownership::Replica, ..subscription(&queue, &["t"]) });
    assert_eq!(bus.publish(&to_queue(&queue, "one")).await, Ok(Routing::Routed));
    client.close().await;
    assert_eq!(bus.publish(&to_queue(&queue, "two")).await, Ok(Routing::Unroutable));
    assert_eq!(bus.publish(&to_topic("t", "three")).await, Ok(Routing::Unroutable));
}
