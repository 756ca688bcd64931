package property

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

func TestAnnouncement(t *testing.T) {
	for _, want := range []Announcement{{}, {StoreID: "e1", MaxEventBytes: 1 << 20}} {
		if got, ok := Announced(want.Properties()); !ok || got != want {
			t.Errorf("%+v became %+v, %v", want, got, ok)
		}
	}
	for name, p := range map[string][]codec.Property{
		"OCM broker": nil,
		"earlier":    {{Key: "hawser-protocol", Value: "1"}},
		"later":      {{Key: "hawser-protocol", Value: "3"}},
		"twice":      {{Key: "hawser-protocol", Value: "2"}, {Key: "hawser-protocol", Value: "2"}},
	} {
		if got, ok := Announced(p); ok {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestHello(t *testing.T) {
	other := codec.DataType{Group: "g", Version: "v1", Resource: "r"}
	for _, h := range []transport.Hello{{}, {Protocol: transport.Protocol}, {Protocol: transport.Protocol, Cursor: "e/1/2", ClusterUID: "u"}} {
		for _, d := range []codec.DataType{codec.ManifestBundles, other} {
			got, dataType := HelloOf(Hello(h, d))
			if got != h || dataType != d.String() {
				t.Errorf("%+v of %s became %+v of %s", h, d, got, dataType)
			}
		}
	}
	// An OCM client sends no properties.
	if p := Hello(transport.Hello{Cursor: "x"}, codec.ManifestBundles); len(p) > 0 {
		t.Errorf("an OCM client sends %v", p)
	}
	for _, version := range []string{"1", "3", "x"} {
		other := []codec.Property{{Key: codec.HeaderProtocol, Value: version}, {Key: codec.HeaderCursor, Value: "x"}}
		if h, _ := HelloOf(other); h != (transport.Hello{}) {
			t.Errorf("a client of protocol %s: %+v", version, h)
		}
		if a := AcceptedOf(other); a.Protocol != 0 {
			t.Errorf("a broker of protocol %s: %+v", version, a)
		}
	}
}

func TestAccepted(t *testing.T) {
	for _, want := range []transport.Accepted{
		{}, {SubscriptionID: "s"},
		{SubscriptionID: "s", Protocol: transport.Protocol, Resync: codec.ResyncCursor, StoreID: "e1", MaxEventBytes: 5},
	} {
		if d := cmp.Diff(want, AcceptedOf(Accepted(want))); d != "" {
			t.Error(d)
		}
	}
	if got := AcceptedOf([]codec.Property{{Key: codec.HeaderMaxEventBytes, Value: "-4"}}); got.MaxEventBytes != 0 {
		t.Errorf("%+v", got)
	}
}

func TestReceipt(t *testing.T) {
	for _, want := range []transport.Receipt{{}, {Outcome: "stale"}, {Outcome: "accepted", Revision: 1<<64 - 1}, {Revision: 7}} {
		if got := ReceiptOf(Receipt(want)); got != want {
			t.Errorf("%+v became %+v", want, got)
		}
	}
	if got := ReceiptOf([]codec.Property{{Key: codec.HeaderRevision, Value: "x"}}); got != (transport.Receipt{}) {
		t.Errorf("%+v", got)
	}
	if id := SubscriptionIDOf(SubscriptionID("s")); id != "s" {
		t.Errorf("subscription id %q", id)
	}
	if p := SubscriptionID(""); len(p) > 0 {
		t.Errorf("no subscription: %v", p)
	}
}

// TestRefusal_IsTheSameError: for every code, the client gets the same error that the broker sent.
func TestRefusal_IsTheSameError(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := &transport.Error{
			Code:      transport.Code(rapid.IntRange(0, int(transport.CodeDeadline)).Draw(t, "code")),
			Next:      transport.NextStep(rapid.IntRange(0, int(transport.NextUseAnotherServer)).Draw(t, "next")),
			Delay:     time.Duration(rapid.Int64Range(0, 1e9).Draw(t, "delay")) * time.Millisecond,
			Attribute: rapid.SampledFrom([]string{"", "metadata"}).Draw(t, "attribute"),
			Message:   rapid.StringMatching(`[ -~é]{1,20}`).Draw(t, "message"),
			Hint:      rapid.StringMatching(`[ -~é]{0,20}`).Draw(t, "hint"),
			Err:       errors.New("secret"),

			ClusterOnly: rapid.Bool().Draw(t, "cluster only"), Full: rapid.Bool().Draw(t, "full"),
		}
		revision := rapid.Uint64().Draw(t, "revision")
		r := RefusalOf(want, revision)
		if !r.Reason.Failed() {
			t.Fatalf("%v is answered with %v", want, r.Reason)
		}
		if d := cmp.Diff(want, r.Error(), cmpopts.IgnoreFields(transport.Error{}, "Err")); d != "" {
			t.Fatalf("(-want +got):\n%s", d)
		}
		if got := ReceiptOf(r.Properties).Revision; got != revision {
			t.Fatalf("revision %d became %d", revision, got)
		}
		for _, p := range append(r.Properties, codec.Property{Value: r.Text}) {
			if strings.Contains(p.Value, "secret") {
				t.Fatalf("the cause is sent: %v", p)
			}
		}
	})
}

// TestRefusal_OfAnOCMBroker: without properties, the reason code determines the error. The codes are those of
// PUBACK in docs/protocol/mqtt.md.
func TestRefusal_OfAnOCMBroker(t *testing.T) {
	for reason, want := range map[Reason]transport.Code{
		Unspecified: transport.CodeInternal, ImplementationSpecific: transport.CodeInternal, NotAuthorized: transport.CodeDenied,
		TopicNameInvalid: transport.CodeInvalid, PacketIDInUse: transport.CodeInternal, QuotaExceeded: transport.CodeOverloaded,
		PayloadFormatInvalid: transport.CodeInvalid, PacketTooLarge: transport.CodeTooLarge, 0xF0: transport.CodeInternal,
	} {
		e := Refusal{Reason: reason}.Error()
		if e.Code != want || !strings.Contains(e.Message, "0x") {
			t.Errorf("%v: %v", reason, e)
		}
	}
	for reason, want := range map[Reason]transport.NextStep{UseAnotherServer: transport.NextUseAnotherServer, ServerMoved: transport.NextUseAnotherServer, ShuttingDown: transport.NextUnspecified} {
		if e := (Refusal{Reason: reason}).Error(); e.Code != transport.CodeUnavailable || e.Next != want {
			t.Errorf("%v: %+v", reason, e)
		}
	}
	e := Refusal{Reason: QuotaExceeded, Text: "slow down", Properties: []codec.Property{
		{Key: "hawser-code", Value: "none of ours"}, {Key: "hawser-next-step", Value: "?"}, {Key: "hawser-delay", Value: "-1s"},
	}}.Error()
	if d := cmp.Diff(&transport.Error{Code: transport.CodeOverloaded, Message: "slow down"}, e); d != "" {
		t.Errorf("what cannot be read counts (-want +got):\n%s", d)
	}
}

func TestRefusal_TextsHaveALimit(t *testing.T) {
	long := strings.Repeat("é", 4000) + "\x00"
	r := RefusalOf(&transport.Error{Code: 99, Message: long, Hint: long, Attribute: "a\x00b", Delay: time.Microsecond}, 0)
	if r.Reason != Unspecified || len(r.Text) > maxText || strings.Contains(r.Text, "\x00") {
		t.Errorf("%v, %d bytes", r.Reason, len(r.Text))
	}
	e := r.Error()
	if e.Code != transport.CodeInternal || e.Attribute != "ab" || len(e.Hint) > maxText || e.Delay != time.Millisecond {
		t.Errorf("%+v", e)
	}
	if e := (Refusal{Reason: Unspecified, Text: long}).Error(); len(e.Message) > maxText {
		t.Errorf("a foreign broker's text of %d bytes is kept", len(e.Message))
	}
}

func TestReason_String(t *testing.T) {
	for r, want := range map[Reason]string{Success: "success (0x00)", NoMatchingSubscribers: "no matching subscribers (0x10)", TakenOver: "session taken over (0x8E)", 0x42: "reason 0x42"} {
		if r.String() != want {
			t.Errorf("%s, want %s", r, want)
		}
	}
}

// FuzzRead reads any properties, one per line, with all readers of this package.
func FuzzRead(f *testing.F) {
	add := func(reason byte, properties ...codec.Property) {
		var lines []string
		for _, p := range properties {
			lines = append(lines, p.Key+"="+p.Value)
		}
		f.Add(reason, "text", strings.Join(lines, "\n"))
	}
	r := RefusalOf(&transport.Error{Code: transport.CodeConflict, Next: transport.NextResync, Delay: time.Second, Attribute: "a", Hint: "h"}, 7)
	add(byte(r.Reason), r.Properties...)
	add(0, Announcement{StoreID: "e", MaxEventBytes: 3}.Properties()...)
	add(0, Hello(transport.Hello{Protocol: transport.Protocol, Cursor: "c", ClusterUID: "u"}, codec.DataType{Group: "g", Version: "v", Resource: "r"})...)
	add(0, Accepted(transport.Accepted{SubscriptionID: "s", Protocol: transport.Protocol, Resync: "list", StoreID: "e", MaxEventBytes: 1})...)
	add(0, Receipt(transport.Receipt{Outcome: "stale", Revision: 2})...)
	f.Fuzz(func(t *testing.T, reason byte, text, properties string) {
		var p []codec.Property
		for line := range strings.SplitSeq(properties, "\n") {
			key, value, _ := strings.Cut(line, "=")
			p = append(p, codec.Property{Key: key, Value: value})
		}
		if a, ok := Announced(p); ok {
			if again, ok := Announced(a.Properties()); !ok || a != again {
				t.Fatalf("%+v became %+v", a, again)
			}
		}
		if a := AcceptedOf(p); a.Protocol == transport.Protocol {
			if again := AcceptedOf(Accepted(a)); !cmp.Equal(a, again) {
				t.Fatalf("%+v became %+v", a, again)
			}
		}
		if r := ReceiptOf(p); r != ReceiptOf(Receipt(r)) {
			t.Fatalf("%+v became %+v", r, ReceiptOf(Receipt(r)))
		}
		if h, dataType := HelloOf(p); dataType == "" || h.Protocol == 0 && h != (transport.Hello{}) {
			t.Fatalf("%+v of %q", h, dataType)
		}
		e := Refusal{Reason: Reason(reason), Text: text, Properties: p}.Error()
		again := RefusalOf(e, 0).Error()
		e.Delay, again.Delay = 0, 0 // rounded
		if !cmp.Equal(e, again) {
			t.Fatalf("%+v became %+v", e, again)
		}
	})
}
