use toolbus_core::caller::AgentName;

use super::*;
use crate::rpc::{Call, Message};

const LIMITS: Limits = Limits { total: 3, per_token: 2, idle: Duration::from_secs(60) };

fn owner(token: u64) -> Owner {
    Owner { token: Some(TokenId(token)), ..Owner::default() }
}

fn begin(sessions: &Sessions, token: u64) -> Result<(Arc<Session>, Option<Arc<Session>>), Full> {
    begin_of(sessions, &owner(token))
}

fn begin_of(sessions: &Sessions, owner: &Owner) -> Result<(Arc<Session>, Option<Arc<Session>>), Full> {
    let caller = |id| Caller { session: Some(id), ..Caller::agent(AgentName::parse("ana").unwrap()) };
    sessions.begin(owner.clone(), Version::V20251125, "tcp", caller)
}

fn id(text: &str) -> crate::rpc::Id {
    let message = format!(r#"{{"jsonrpc":"2.0","id":{text},"method":"ping"}}"#);
    match Message::read(message.as_bytes()).unwrap() {
        Message::Request(Call { id, .. }) => id,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_is_found_by_its_own_token_alone() {
    let sessions = Sessions::new(LIMITS);
    let (session, _) = begin(&sessions, 1).unwrap();
    assert!(sessions.get(&session.id, Some(TokenId(1))).is_some());
    for token in [Some(TokenId(2)), None] {
        assert!(sessions.get(&session.id, token).is_none());
    }
    assert_eq!(session.caller.session.as_ref(), Some(&session.id));
}

#[tokio::test(start_paused = true)]
async fn the_session_of_a_token_that_has_been_idle_for_longest_makes_room() {
    let sessions = Sessions::new(LIMITS);
    let (first, _) = begin(&sessions, 1).unwrap();
    tokio::time::advance(Duration::from_secs(1)).await;
    let (second, _) = begin(&sessions, 1).unwrap();
    tokio::time::advance(Duration::from_secs(1)).await;
    assert!(sessions.get(&first.id, Some(TokenId(1))).is_some());
    let (_, evicted) = begin(&sessions, 1).unwrap();
    assert_eq!(evicted.unwrap().id, second.id);
    assert_eq!(sessions.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn sessions_in_use_and_those_of_others_make_no_room() {
    let sessions = Sessions::new(LIMITS);
    let (first, second) = (begin(&sessions, 1).unwrap().0, begin(&sessions, 1).unwrap().0);
    let _underway = first.enter(&id("1")).unwrap();
    let _stream = second.stream();
    assert_eq!(begin(&sessions, 1).unwrap_err(), Full);
    begin(&sessions, 2).unwrap();
    assert_eq!(begin(&sessions, 3).unwrap_err(), Full);
}

#[tokio::test(start_paused = true)]
async fn sessions_end_when_they_have_been_idle_for_long_enough() {
    let sessions = Sessions::new(LIMITS);
    let (idle, used) = (begin(&sessions, 1).unwrap().0, begin(&sessions, 1).unwrap().0);
    let underway = used.enter(&id("1")).unwrap();
    tokio::time::advance(Duration::from_secs(60)).await;
    let ended: Vec<_> = sessions.expired().iter().map(|session| Arc::clone(&session.id)).collect();
    assert_eq!(ended, [Arc::clone(&idle.id)]);
    drop(underway);
    assert!(sessions.expired().is_empty(), "it was in use until now");
    tokio::time::advance(Duration::from_secs(60)).await;
    assert_eq!(sessions.expired().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn sessions_of_a_token_that_was_withdrawn_end_with_what_they_have_under_way() {
    let sessions = Sessions::new(LIMITS);
    let gone = owner(1);
    let (idle, used) = (begin_of(&sessions, &gone).unwrap().0, begin_of(&sessions, &gone).unwrap().0);
    begin(&sessions, 2).unwrap();
    let underway = used.enter(&id("1")).unwrap();
    gone.revoked.cancel();
    let ended: Vec<_> = sessions.expired().iter().map(|session| Arc::clone(&session.id)).collect();
    assert_eq!(ended, [Arc::clone(&idle.id)]);
    drop(underway);
    assert_eq!(sessions.expired().len(), 1);
    assert_eq!(sessions.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn sessions_of_a_token_that_was_withdrawn_make_room_for_everybody_first() {
    let sessions = Sessions::new(LIMITS);
    let gone = owner(1);
    begin(&sessions, 2).unwrap();
    tokio::time::advance(Duration::from_secs(1)).await;
    let (first, second) = (begin_of(&sessions, &gone).unwrap().0, begin_of(&sessions, &gone).unwrap().0);
    let stream = second.stream();
    assert_eq!(begin(&sessions, 3).unwrap_err(), Full);
    gone.revoked.cancel();
    let (_, evicted) = begin(&sessions, 2).unwrap();
    assert_eq!(evicted.unwrap().id, first.id, "and not the token's own, which has been idle for longer");
    drop(stream);
    let (third, evicted) = begin(&sessions, 2).unwrap();
    assert_ne!(evicted.unwrap().id, second.id, "one that has as many as it may makes room by its own");
    let (_, evicted) = begin(&sessions, 3).unwrap();
    assert_eq!(evicted.unwrap().id, second.id);
    assert_eq!(begin(&sessions, 4).unwrap_err(), Full);
    drop(third);
}

#[tokio::test(start_paused = true)]
async fn a_request_is_cancelled_by_its_id_and_no_id_is_used_twice_at_a_time() {
    let (session, _) = begin(&Sessions::new(LIMITS), 1).unwrap();
    let (number, text) = (session.enter(&id("1")).unwrap(), session.enter(&id(r#""1""#)).unwrap());
    assert!(session.enter(&id("1")).is_err());
    session.cancel(&id("1"));
    assert!(number.cancelled.is_cancelled() && !text.cancelled.is_cancelled());
    drop(number);
    session.cancel(&id("1"));
    assert!(session.enter(&id("1")).is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_session_has_one_stream_the_last() {
    let (session, _) = begin(&Sessions::new(LIMITS), 1).unwrap();
    let (first, second) = (session.stream(), session.stream());
    assert!(first.over.is_cancelled() && !second.over.is_cancelled());
    drop(first);
    assert!(!second.over.is_cancelled());
    session.ended.cancel();
    assert!(second.over.is_cancelled());
}

#[tokio::test(start_paused = true)]
async fn a_session_whose_stream_has_ended_is_idle_from_then_on() {
    let sessions = Sessions::new(LIMITS);
    let (session, _) = begin(&sessions, 1).unwrap();
    let stream = session.stream();
    tokio::time::advance(Duration::from_secs(60)).await;
    assert!(sessions.expired().is_empty());
    drop(stream);
    assert!(sessions.expired().is_empty(), "it was in use until now");
    tokio::time::advance(Duration::from_secs(60)).await;
    assert_eq!(sessions.expired().len(), 1);
}
