//! A line for whoever looks at a terminal, from nobody that runs in it.

use super::Screen;

/// What is to be written to a terminal so that its user is told something, as `wall` does; none: it is in the middle
/// of a sequence, and has to be asked again after more output.
///
/// A program that draws the whole screen would be drawn over: there the bell rings, and the text goes to the
/// terminal as a notification (OSC 9, of iTerm2; terminals that do not have it drop it).
pub fn notice(text: &str, screen: &Screen) -> Option<Vec<u8>> {
    if !screen.is_ground() {
        return None;
    }
    let text: String = text.chars().filter(|c| !c.is_control()).collect();
    Some(if screen.is_alternate() {
        format!("\x07\x1b]9;{text}\x07").into_bytes()
    } else {
        format!("\x07\r\n{text}\r\n").into_bytes()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(output: &[u8]) -> Screen {
        let mut screen = Screen::default();
        screen.advance(output);
        screen
    }

    #[test]
    fn a_notice_is_a_line_and_leaves_a_full_screen_alone() {
        let told = notice("it ends\x1b[2J", &after(b"$ ls")).expect("between characters");
        assert_eq!(told, b"\x07\r\nit ends[2J\r\n");
        let screen = after(b"\x1b[?1049h\x1b[2Jvim");
        let told = notice("it ends", &screen).expect("between characters");
        assert_eq!(told, b"\x07\x1b]9;it ends\x07");
        let mut later = screen;
        later.advance(&told);
        assert_eq!(later, screen, "nothing of the screen has changed");
        for cut in [&b"\x1b[3"[..], b"\xc3", b"\x1b]0;title"] {
            assert_eq!(notice("it ends", &after(cut)), None);
        }
    }
}
