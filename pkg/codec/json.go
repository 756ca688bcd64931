package codec

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxDepth is the maximum nesting depth of objects and lists.
const maxDepth = 128

// jsonReader reads JSON of a client from front to back. It allocates nothing itself: it skips unrequested
// values, and reads a requested value once its size is known. It reads JSON like encoding/json: null leaves a
// value unchanged, and member names match without regard to case. It is stricter in two ways. A requested
// member may occur only once, so that all readers use the same value; and the depth is bounded.
type jsonReader struct {
	b     []byte
	at    int
	depth int
	// counts: limit the number of objects and lists to remainingValues.
	counts          bool
	remainingValues int
}

// jsonError describes a problem with JSON. It ends a sentence that begins with "it".
type jsonError string

func (p jsonError) Error() string { return string(p) }

// errSyntax is the error for invalid JSON, or for a value of another type than expected.
const errSyntax = jsonError("is not the JSON that is expected here")

// readObject reads b, which must be one object, and passes the members in want to f; see [jsonReader.object].
func readObject(b []byte, want []string, f func(r *jsonReader, member int) error) error {
	r := &jsonReader{b: b}
	if err := r.object(want, func(member int) error { return f(r, member) }); err != nil {
		return err
	}
	return r.end()
}

// end returns an error if anything but space follows the value.
func (r *jsonReader) end() error {
	if r.peek(); r.at < len(r.b) {
		return errSyntax
	}
	return nil
}

// problemWith converts a JSON error to an *AttributeError; must describes the expected value.
func problemWith(attribute, must string, err error) error {
	if p := jsonError(""); err != nil && errors.As(err, &p) {
		return attributeError(attribute, "", must+"; it "+string(p))
	}
	return err
}

// peek returns the next byte that is not a space, or 0 at the end.
func (r *jsonReader) peek() byte {
	for ; r.at < len(r.b); r.at++ {
		switch c := r.b[r.at]; c {
		case ' ', '\t', '\n', '\r':
		default:
			return c
		}
	}
	return 0
}

// take consumes c and returns true if c comes next.
func (r *jsonReader) take(c byte) bool {
	if r.peek() != c || r.at >= len(r.b) {
		return false
	}
	r.at++
	return true
}

func (r *jsonReader) literal(s string) bool {
	if !bytes.HasPrefix(r.b[r.at:], []byte(s)) {
		return false
	}
	r.at += len(s)
	return true
}

// null consumes a null and returns true if it comes next.
func (r *jsonReader) null() bool { return r.peek() == 'n' && r.literal("null") }

// enter goes one level deeper and counts the value.
func (r *jsonReader) enter() error {
	if r.depth++; r.depth > maxDepth {
		return jsonError("is nested deeper than " + strconv.Itoa(maxDepth) + " levels")
	}
	if r.remainingValues--; r.counts && r.remainingValues < 0 {
		return atMost(MaxParts, "objects and lists")
	}
	return nil
}

// object reads an object, or null. For each member in want it calls f with the index in want, and f reads the
// value. It skips other members.
func (r *jsonReader) object(want []string, f func(member int) error) error {
	if r.null() {
		return nil
	}
	seen := uint64(0) // bits by index in want
	return r.members(func(name []byte) error {
		i := indexOf(want, name)
		if i < 0 {
			return r.skip()
		}
		if seen&(1<<i) != 0 {
			return jsonError("has the member " + want[i] + " twice")
		}
		seen |= 1 << i
		return f(i)
	})
}

// members reads an object. f gets the raw name of each member, without quotes, and reads the value.
func (r *jsonReader) members(f func(name []byte) error) error {
	if !r.take('{') {
		return errSyntax
	}
	if err := r.enter(); err != nil {
		return err
	}
	for more := !r.take('}'); more; {
		name, err := r.key()
		if err == nil {
			err = f(name)
		}
		if err == nil {
			more, err = r.next('}')
		}
		if err != nil {
			return err
		}
	}
	r.depth--
	return nil
}

// list reads a list, or null; f reads each element.
func (r *jsonReader) list(f func() error) error {
	if r.null() {
		return nil
	}
	if !r.take('[') {
		return errSyntax
	}
	if err := r.enter(); err != nil {
		return err
	}
	for more := !r.take(']'); more; {
		err := f()
		if err == nil {
			more, err = r.next(']')
		}
		if err != nil {
			return err
		}
	}
	r.depth--
	return nil
}

// next returns true if another member or element follows, and false at the end.
func (r *jsonReader) next(end byte) (more bool, err error) {
	if r.take(',') {
		return true, nil
	}
	if r.take(end) {
		return false, nil
	}
	return false, errSyntax
}

// key reads the raw name of a member, without quotes, and the colon.
func (r *jsonReader) key() (name []byte, err error) {
	if name, err = r.quoted(); err == nil && !r.take(':') {
		err = errSyntax
	}
	return name, err
}

// indexOf returns the index of a raw name in want, or a negative number.
func indexOf(want []string, raw []byte) int {
	for i, w := range want {
		if string(raw) == w {
			return i
		}
	}
	if len(raw) > 256 {
		return -1 // longer than all of them, written with escapes
	}
	name, _ := unquote(raw)
	for i, w := range want {
		if strings.EqualFold(name, w) {
			return i
		}
	}
	return -1
}

// quoted reads a text and returns the raw bytes between its quotes.
func (r *jsonReader) quoted() ([]byte, error) {
	if !r.take('"') {
		return nil, errSyntax
	}
	begin := r.at
	for r.at < len(r.b) {
		switch c := r.b[r.at]; {
		case c == '"':
			r.at++
			return r.b[begin : r.at-1], nil
		case c == '\\':
			if !r.escape() {
				return nil, errSyntax
			}
		case c < ' ':
			return nil, errSyntax
		default:
			r.at++
		}
	}
	return nil, errSyntax
}

// escape consumes an escape sequence. It returns false if the sequence is invalid.
func (r *jsonReader) escape() bool {
	if r.at+1 >= len(r.b) {
		return false
	}
	switch r.b[r.at+1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		r.at += 2
		return true
	case 'u':
		if r.at+6 > len(r.b) {
			return false
		}
		for _, c := range r.b[r.at+2 : r.at+6] {
			if (c < '0' || c > '9') && (c < 'a' || c > 'f') && (c < 'A' || c > 'F') {
				return false
			}
		}
		r.at += 6
		return true
	}
	return false
}

// isUnescaped reports whether raw equals its decoded text.
func isUnescaped(raw []byte) bool {
	for _, c := range raw {
		if c == '\\' || c >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// unquote decodes raw, the result of [jsonReader.quoted].
func unquote(raw []byte) (s string, ok bool) {
	if isUnescaped(raw) {
		return string(raw), true
	}
	quoted := append(append([]byte{'"'}, raw...), '"')
	return s, json.Unmarshal(quoted, &s) == nil
}

// name reads a text that is a name, or null, which gives "". Where possible the result aliases the input.
func (r *jsonReader) name(what string) ([]byte, error) {
	if r.null() {
		return nil, nil
	}
	raw, err := r.quoted()
	if err != nil {
		return nil, err
	}
	if len(raw) <= 6*MaxNameBytes && !isUnescaped(raw) {
		s, ok := unquote(raw)
		if !ok {
			return nil, errSyntax
		}
		raw = []byte(s)
	}
	if p := nameProblem(raw); p != "" {
		return nil, jsonError("has a " + what + " that " + p)
	}
	return raw, nil
}

// text reads a text, or null, which gives "". A text too long to match any compared value is cut.
func (r *jsonReader) text() (string, error) {
	if r.null() {
		return "", nil
	}
	raw, err := r.quoted()
	if err != nil || len(raw) > 6*maxAttributeName {
		return "", err
	}
	s, ok := unquote(raw)
	if !ok {
		err = errSyntax
	}
	return s, err
}

// integer reads a number without fraction, or null, which gives 0.
func (r *jsonReader) integer() (int64, error) {
	if r.null() {
		return 0, nil
	}
	begin := r.at
	if !r.number() || r.at-begin > len("-9223372036854775808") {
		return 0, errSyntax
	}
	n, err := strconv.ParseInt(string(r.b[begin:r.at]), 10, 64)
	if err != nil {
		return 0, errSyntax
	}
	return n, nil
}

// number consumes a number. The caller has peeked, so no space precedes it.
func (r *jsonReader) number() bool {
	digits := func() bool {
		begin := r.at
		for r.at < len(r.b) && r.b[r.at] >= '0' && r.b[r.at] <= '9' {
			r.at++
		}
		return r.at > begin
	}
	one := func(set string) bool {
		ok := r.at < len(r.b) && strings.IndexByte(set, r.b[r.at]) >= 0
		if ok {
			r.at++
		}
		return ok
	}
	one("-")
	if !one("0") && !digits() {
		return false
	}
	if one(".") && !digits() {
		return false
	}
	if one("eE") {
		one("+-")
		return digits()
	}
	return true
}

// skip skips a value of any type and depth, without recursion.
func (r *jsonReader) skip() error {
	if c := r.peek(); c != '{' && c != '[' {
		return r.scalar(c)
	}
	var objects [maxDepth + 1]bool // by level: the value is an object, not a list
	for top := r.depth; ; {
		open, err := r.opens(&objects)
		if err != nil {
			return err
		}
		for !open {
			if r.depth == top {
				return nil
			}
			if open, err = r.goesOn(objects[r.depth]); err != nil {
				return err
			}
		}
	}
}

// value consumes a value and returns its raw text.
func (r *jsonReader) value() ([]byte, error) {
	r.peek()
	begin := r.at
	err := r.skip()
	return r.b[begin:r.at], err
}

// opens consumes a scalar or the begin of an object or list. open is true if an element follows.
func (r *jsonReader) opens(objects *[maxDepth + 1]bool) (open bool, err error) {
	c := r.peek()
	if c != '{' && c != '[' {
		return false, r.scalar(c)
	}
	r.at++
	if err := r.enter(); err != nil {
		return false, err
	}
	objects[r.depth] = c == '{'
	if r.take(c + 2) { // the code of '}' is that of '{' plus 2; the same for ']' and '['
		r.depth--
		return false, nil
	}
	if c == '{' {
		_, err = r.key()
	}
	return true, err
}

// goesOn continues after an element of an object or list: to the next element, or out of it.
func (r *jsonReader) goesOn(object bool) (more bool, err error) {
	end := byte(']')
	if object {
		end = '}'
	}
	more, err = r.next(end)
	switch {
	case err != nil:
	case !more:
		r.depth--
	case object:
		_, err = r.key()
	}
	return more, err
}

// scalar consumes a value that is neither object nor list, and begins with c.
func (r *jsonReader) scalar(c byte) (err error) {
	ok := true
	switch c {
	case '"':
		_, err = r.quoted()
	case 't':
		ok = r.literal("true")
	case 'f':
		ok = r.literal("false")
	case 'n':
		ok = r.literal("null")
	default:
		ok = r.number()
	}
	if !ok {
		err = errSyntax
	}
	return err
}

// atMost returns the error that more than n of something are present.
func atMost(n int, what string) error {
	return jsonError(fmt.Sprintf("has more than %d %s", n, what))
}
