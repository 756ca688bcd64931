package shellblocks_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hawser-io/hawser/internal/testkit/shellblocks"
)

const page = "# A page\n" +
	"```sh test\necho one\n\necho two\n```\n" +
	"text ```sh test``` in a line is no block\n" +
	"```sh\nmake demo\n```\n" +
	"```yaml\nkind: A\n```\n" +
	"1. in a list\n" +
	"   ````sh test demo\n   cat <<X\n   ```\n   X\n   ````\n" +
	"~~~sh\nls\n~~~\n"

func TestParse(t *testing.T) {
	got, err := shellblocks.Parse("a.md", []byte(page))
	if err != nil {
		t.Fatal(err)
	}
	want := []shellblocks.Block{
		{File: "a.md", Line: 3, Kind: shellblocks.Standalone, Text: "echo one\n\necho two\n"},
		{File: "a.md", Line: 9, Kind: shellblocks.Shown, Text: "make demo\n"},
		{File: "a.md", Line: 16, Kind: shellblocks.Demo, Text: "cat <<X\n```\nX\n"},
		{File: "a.md", Line: 21, Kind: shellblocks.Shown, Text: "ls\n"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("blocks (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(want[2:3], shellblocks.Of(shellblocks.Demo, got)); diff != "" {
		t.Errorf("blocks of one kind (-want +got):\n%s", diff)
	}
}

func TestParse_RejectsUnrunnableRules(t *testing.T) {
	for _, tc := range []struct{ name, page, want string }{
		{"typing error", "\n```sh tset\n```\n", `a.md:2: "sh tset": use sh, sh test, sh test demo, sh test join or sh test install`},
		{"another language", "```console test\n```\n", "only sh blocks"},
		{"never closed", "```sh test\necho\n", "a.md:1: the fence that opens here is never closed"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := shellblocks.Parse("a.md", []byte(tc.page))
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("Parse: %v, want an error about %q", err, tc.want)
			}
		})
	}
}

func TestFind(t *testing.T) {
	root := t.TempDir()
	for _, dir := range []string{"docs/adr", "deploy", "test"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{"README.md", "docs/adr/one.md", "deploy/README.md", "docs/not.txt"} {
		if err := os.WriteFile(filepath.Join(root, file), []byte("```sh\nls\n```\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	blocks, err := shellblocks.Find(root)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, b := range blocks {
		got = append(got, b.String())
	}
	if diff := cmp.Diff([]string{"README.md:2", "deploy/README.md:2", "docs/adr/one.md:2"}, got); diff != "" {
		t.Errorf("blocks (-want +got):\n%s", diff)
	}
}

func TestRunner_Run(t *testing.T) {
	dir := t.TempDir()
	r := shellblocks.Runner{
		Dir:     dir,
		Path:    []string{"/opt/first"},
		Env:     []string{"HELLO=hello"},
		Replace: []string{"old.example", "new.example"},
	}
	out, err := r.Run(t.Context(), shellblocks.Block{Text: "pwd\necho $HELLO old.example\necho ${PATH%%:*} >&2\n"})
	if err != nil {
		t.Fatal(err)
	}
	if want := dir + "\nhello new.example\n/opt/first\n"; out != want {
		t.Errorf("output %q, want %q", out, want)
	}
}

func TestRunner_StopsAtTheFirstFailure(t *testing.T) {
	for _, text := range []string{"false\necho after\n", "false | true\necho after\n", "echo $NOT_SET_ANYWHERE\necho after\n"} {
		out, err := shellblocks.Runner{}.Run(t.Context(), shellblocks.Block{File: "a.md", Line: 7, Text: text})
		if err == nil || !strings.HasPrefix(err.Error(), "a.md:7: ") || strings.Contains(out, "after") {
			t.Errorf("Run(%q) = %q, %v; want an error that begins with a.md:7", text, out, err)
		}
	}
}

func TestRunner_KillsProcessesOfBlock(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	began := time.Now()
	_, err := shellblocks.Runner{}.Run(ctx, shellblocks.Block{Text: "sleep 60 & sleep 60\n"})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Run: %v, want DeadlineExceeded", err)
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("Run took %v: its background process was not killed", took)
	}
}
