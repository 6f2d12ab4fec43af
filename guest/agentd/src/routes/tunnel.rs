//! `GET /v1/tcp`: from a request to an upgraded socket.

use std::rc::Rc;

use agentd_protocol::Slug;
use agentd_protocol::tunnel::SUBPROTOCOL;
use hyper::HeaderMap;
use hyper::Request;
use hyper::StatusCode;
use hyper::body::Incoming;
use hyper::header;
use hyper::header::HeaderName;
use hyper::header::HeaderValue;

use super::query;
use crate::app::App;
use crate::exec::Refusal;
use crate::respond;
use crate::respond::Answer;
use crate::server::Place;
use crate::tunnel;
use crate::tunnel::Asked;
use crate::tunnel::Socket;

pub(super) async fn open(app: &App, place: Rc<Place>, mut request: Request<Incoming>) -> Answer {
    let asked = asked(request.uri().query());
    let accepted = asked.and_then(|asked| Ok((asked, upgrade_key(request.headers())?)));
    let (asked, key) = match accepted {
        Ok(accepted) => accepted,
        Err(refusal) => return super::refuse(request, respond::refused(&refusal)).await,
    };
    let answer = switching(&key, offers_subprotocol(request.headers()));
    let upgrade = hyper::upgrade::on(&mut request);
    let identity = app.bootstrap.borrow().tunnel_identity();
    tokio::task::spawn_local(async move {
        if let Ok(upgraded) = upgrade.await {
            let socket = Socket::accept(upgraded).await;
            tunnel::serve(socket, asked, identity, place.cut()).await;
        }
        // An open tunnel is a connection, and takes the place of one.
        drop(place);
    });
    answer
}

fn asked(query: Option<&str>) -> Result<Asked, Refusal> {
    let port = query::value(query, "port").ok().flatten();
    let digits = port.filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    let port = digits
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| malformed("`port` is no port"))?;
    let verified = match query::value(query, "identity")
        .as_ref()
        .map(Option::as_deref)
    {
        Ok(None | Some("false" | "0")) => false,
        Ok(Some("true" | "1")) => true,
        _ => return Err(malformed("`identity` is neither true nor false")),
    };
    Ok(Asked { port, verified })
}

/// The key of a request that asks for a WebSocket.
fn upgrade_key(headers: &HeaderMap) -> Result<HeaderValue, Refusal> {
    let lists = |name: HeaderName, token: &str| {
        let values = headers.get_all(name).into_iter();
        values
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .any(|listed| listed.trim().eq_ignore_ascii_case(token))
    };
    let asks = lists(header::CONNECTION, "upgrade")
        && lists(header::UPGRADE, "websocket")
        && lists(header::SEC_WEBSOCKET_VERSION, "13");
    let key = headers.get(header::SEC_WEBSOCKET_KEY).filter(|_| asks);
    key.cloned()
        .ok_or_else(|| malformed("the request does not ask for a WebSocket of version 13"))
}

fn offers_subprotocol(headers: &HeaderMap) -> bool {
    headers
        .get_all(header::SEC_WEBSOCKET_PROTOCOL)
        .into_iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|offered| offered.trim() == SUBPROTOCOL)
}

fn switching(key: &HeaderValue, echo_subprotocol: bool) -> Answer {
    let mut answer = respond::empty(StatusCode::SWITCHING_PROTOCOLS);
    let headers = answer.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    if let Ok(proof) = HeaderValue::from_str(&tunnel::accept_key(key.as_bytes())) {
        headers.insert(header::SEC_WEBSOCKET_ACCEPT, proof);
    }
    if echo_subprotocol {
        let name = HeaderValue::from_static(SUBPROTOCOL);
        headers.insert(header::SEC_WEBSOCKET_PROTOCOL, name);
    }
    answer
}

fn malformed(detail: &str) -> Refusal {
    Refusal::new(Slug::MalformedRequest, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tunnel_is_asked_for_by_port_and_maybe_by_identity() {
        let ask = |query| asked(Some(query)).map(|asked| (asked.port, asked.verified));
        assert_eq!(ask("port=80"), Ok((80, false)));
        assert_eq!(ask("port=0"), Ok((0, false)));
        assert_eq!(ask("port=65535&identity=true"), Ok((65535, true)));
        assert_eq!(ask("identity=1&port=1"), Ok((1, true)));
        assert_eq!(ask("identity=false&port=1"), Ok((1, false)));
        for bad in [
            "",
            "port=",
            "port=65536",
            "port=-1",
            "port=+1",
            "port=x",
            "port=1&identity=x",
        ] {
            assert!(ask(bad).is_err(), "{bad}");
        }
    }
}
