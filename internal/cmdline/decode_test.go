package cmdline_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hawser-io/hawser/internal/cmdline"
)

type rule struct {
	Name  string `json:"name"`
	Works uint   `json:"works"`
}

type file struct {
	Listen string `json:"listen"`
	Log    struct {
		Level  string `json:"level"`
		Format string `json:"format"`
	} `json:"log"`
	Rules  []rule               `json:"rules"`
	Hubs   map[string]rule      `json:"hubs"`
	Wait   *cmdline.Duration    `json:"wait"`
	Bytes  int                  `json:"bytes"`
	On     bool                 `json:"enabled"`
	Addrs  []string             `json:"addrs"`
	Gates  cmdline.FeatureGates `json:"gates"`
	hidden int
}

func TestDecode_ReportsLineAndField(t *testing.T) {
	for text, want := range map[string]string{
		"listen: a\nlog:\n  lvl: info\n":            "line 3: log.lvl: unknown field; the known ones are format, level",
		"Listen2: a\n":                              "line 1: Listen2: unknown field; the known ones are addrs, bytes, enabled, gates, hubs, listen, log, rules, wait",
		"hidden: 1\n":                               "line 1: hidden: unknown field; the known ones are addrs, bytes, enabled, gates, hubs, listen, log, rules, wait",
		"rules:\n- name: a\n- name: b\n  work: 1\n": "line 4: rules[1].work: unknown field; the known ones are name, works",
		"rules:\n- name: a\n  works: -1\n":          "line 3: rules[0].works: is -1, and has to be a whole number, not negative",
		"hubs:\n  a: {works: x}\n":                  "line 2: hubs.a.works: is a text, and has to be a whole number, not negative",
		"bytes: 1.5\n":                              "line 1: bytes: is 1.5, and has to be a whole number",
		"enabled: perhaps\n":                        "line 1: enabled: is a text, and has to be true or false",
		"addrs: one\n":                              "line 1: addrs: is a text, and has to be a list",
		"rules: one\n":                              "line 1: rules: is a text, and has to be a list",
		"log: info\n":                               "line 1: log: write fields here; the known ones are format, level",
		"- listen\n":                                "line 1: write fields here; the known ones are addrs, bytes, enabled, gates, hubs, listen, log, rules, wait",
		"listen: a\nwait: 10\n":                     `line 2: wait: duration 10: write it with a unit in quotes, as "10s"`,
		"gates: {Opnd: true}\n":                     `line 1: gates: there is no feature gate "Opnd": use one of Opened`,
		"listen: a\nbytes: 1\nlisten: b\n":          "line 3: listen: is on line 1 already",
		"x: 1\ny: 2\n":                              "line 1: x: unknown field; the known ones are addrs, bytes, enabled, gates, hubs, listen, log, rules, wait\nline 2: y: unknown field; the known ones are addrs, bytes, enabled, gates, hubs, listen, log, rules, wait",
		"listen: [a\nbytes: 1\n":                    "line 1: did not find expected ',' or ']'",
		"anchor: &a {works: x}\nhubs: {b: *a}\n":    "line 1: anchor: unknown field; the known ones are addrs, bytes, enabled, gates, hubs, listen, log, rules, wait\nline 1: hubs.b.works: is a text, and has to be a whole number, not negative",
	} {
		f := &file{Gates: cmdline.NewFeatureGates(map[string]bool{"Opened": true}), hidden: 1}
		err := cmdline.Decode([]byte(text), f)
		got := ""
		if err != nil {
			got = err.Error()
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%q:\n%s", text, d)
		}
	}
}

func TestDecode_Reads(t *testing.T) {
	f := &file{Gates: cmdline.NewFeatureGates(map[string]bool{"Opened": true})}
	text := "listen: a\nlog: {level: debug}\nrules: [{name: r, works: 3}]\nwait: 5s\nenabled: yes\ngates: {Opened: false}\n"
	if err := cmdline.Decode([]byte(text), f); err != nil {
		t.Fatal(err)
	}
	if f.Listen != "a" || f.Log.Level != "debug" || f.Rules[0].Works != 3 || f.Wait.String() != "5s" || !f.On || f.Gates.Enabled("Opened") {
		t.Errorf("%+v", f)
	}
}

func TestDecodeLenient(t *testing.T) {
	f := &file{}
	if err := cmdline.DecodeLenient([]byte("other: 1\nlisten: a\n"), f); err != nil || f.Listen != "a" {
		t.Errorf("%+v, %v", f, err)
	}
	if err := cmdline.DecodeLenient([]byte("other: 1\nbytes: x\n"), f); err == nil || err.Error() != "line 2: bytes: is a text, and has to be a whole number" {
		t.Errorf("%v", err)
	}
}
