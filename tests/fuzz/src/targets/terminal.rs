//! Terminals: what clients ask of carrel-init, and what programs in a container print.

use carrel_core::terminal::{Marks, Request, SUBSYSTEM, Screen};

use super::with_text;
use crate::Target;

/// A client's request for a terminal.
pub const REQUEST: Target = Target {
    name: "terminal",
    run: |data| {
        with_text(data, |text| {
            if let Ok(request) = text.parse::<Request>() {
                assert_eq!(request.to_string().parse::<Request>(), Ok(request));
            }
        });
    },
    seeds: || {
        [
            "list",
            "new name=a command=top%20-d1 marks job=3",
            "id=3 read-only seen=12",
        ]
        .map(|words| format!("{SUBSYSTEM} {words}").into_bytes())
        .to_vec()
    },
};

/// The marks that `carrel attach` takes out of a connection's stderr. The first byte says where it is cut.
pub const MARKS: Target = Target {
    name: "mark",
    run: |data| {
        let Some((cut, text)) = data.split_first() else {
            return;
        };
        let cut = text.len() * usize::from(*cut) / 256;
        let take = |pieces: &[&[u8]]| {
            let mut marks = Marks::default();
            let taken: Vec<_> = pieces.iter().map(|piece| marks.take(piece)).collect();
            let found: Vec<_> = taken.iter().flat_map(|(found, _)| found.clone()).collect();
            let rest: Vec<_> = taken.iter().flat_map(|(_, rest)| rest.clone()).collect();
            (found, rest)
        };
        assert_eq!(take(&[text]), take(&[&text[..cut], &text[cut..]]));
    },
    seeds: || {
        vec![
            b"\x40motd\n\x1eat 1 2 3 4\nbye".to_vec(),
            b"\x10\x1eexit 0 15\n\x1erefused no\n".to_vec(),
        ]
    },
};

/// A terminal's modes, followed through what programs print.
pub const SCREEN: Target = Target {
    name: "screen",
    run: |data| {
        let mut screen = Screen::default();
        screen.advance(data);
        assert_eq!(Screen::decode(screen.encode()).encode(), screen.encode());
        // A fresh terminal that is put into these modes is in them.
        let mut fresh = Screen::default();
        fresh.advance(&screen.restore());
        assert!(fresh.is_ground());
        assert_eq!(fresh.restore(), screen.restore());
        // And out of them again.
        screen.advance(&screen.undo());
        assert_eq!(screen.restore(), Screen::default().restore());
    },
    seeds: || {
        vec![
            b"\x1b[?1049h\x1b[?25l\x1b[1;20r\x1b[31mtext\x1b[0m\x1b[?2004h".to_vec(),
            b"\x1b]0;title\x07\x1bP1$r\x1b\\\xc3\xa9\x1b(0\x0e".to_vec(),
        ]
    },
};
