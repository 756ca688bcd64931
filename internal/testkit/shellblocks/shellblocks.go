// Package shellblocks runs the shell commands in the documentation, so that they stay correct. It finds the
// fenced blocks of Markdown files by their info string:
//
//	```sh test        runs alone in the root of the repository
//	```sh test demo   runs beside a fleet as `hawser demo` leaves it
//	```sh test join   runs, after the earlier ones in its file, on a hub with registration
//	```sh test install   runs, after the earlier ones in its file, on a hub of hawser install
//	```sh             is only shown
//
// Any other word after "sh" is an error. Otherwise a typing error would silently disable a block.
package shellblocks

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Kind is the environment that a block runs in.
type Kind string

// The kinds of blocks.
const (
	Shown      Kind = ""
	Standalone Kind = "test"
	Demo       Kind = "test demo"
	Join       Kind = "test join"
	Install    Kind = "test install"
)

// Block is one fenced block of shell commands.
type Block struct {
	// File is relative to the searched root; Line is the line of the block's first command.
	File string
	Line int
	Kind Kind
	Text string
}

// String returns "file:line".
func (b Block) String() string { return fmt.Sprintf("%s:%d", b.File, b.Line) }

// Parse returns the shell blocks of one Markdown file, in order. An error names
// file and line.
func Parse(file string, markdown []byte) ([]Block, error) {
	var blocks []Block
	var open *Block // the current block, if any
	var marker, indent string
	number := 0
	lines := bufio.NewScanner(bytes.NewReader(markdown))
	lines.Buffer(nil, len(markdown)+1)
	for lines.Scan() {
		number++
		line := lines.Text()
		text := strings.TrimLeft(line, " ")
		switch {
		case open == nil:
			fence, info := cutFence(text)
			if fence == "" {
				continue
			}
			marker, indent = fence, line[:len(line)-len(text)]
			kind, err := kindOf(info)
			if err != nil {
				return nil, fmt.Errorf("%s:%d: %w", file, number, err)
			}
			open = &Block{File: file, Line: number + 1, Kind: kind}
		case closes(text, marker):
			if open.Kind != other {
				blocks = append(blocks, *open)
			}
			open = nil
		default:
			open.Text += strings.TrimPrefix(line, indent) + "\n"
		}
	}
	if open != nil {
		return nil, fmt.Errorf("%s:%d: the fence that opens here is never closed", file, open.Line-1)
	}
	return blocks, lines.Err()
}

// other marks blocks that are not shell commands.
const other Kind = "other"

func kindOf(info string) (Kind, error) {
	words := strings.Fields(info)
	if len(words) == 0 || words[0] != "sh" {
		if slices.Contains(words, "test") {
			return other, fmt.Errorf("%q: only sh blocks can be tested", info)
		}
		return other, nil
	}
	kind := Kind(strings.Join(words[1:], " "))
	if kind != Shown && kind != Standalone && kind != Demo && kind != Join && kind != Install {
		return other, fmt.Errorf("%q: use sh, sh test, sh test demo, sh test join or sh test install", info)
	}
	return kind, nil
}

// cutFence splits a line that opens a block into its fence and its info string.
func cutFence(text string) (fence, info string) {
	for _, c := range []string{"`", "~"} {
		rest := strings.TrimLeft(text, c)
		if n := len(text) - len(rest); n >= 3 && !strings.Contains(rest, c) {
			return text[:n], rest
		}
	}
	return "", ""
}

func closes(text, marker string) bool {
	text = strings.TrimRight(text, " \t")
	return len(text) >= len(marker) && strings.Trim(text, marker[:1]) == ""
}

// Find returns the shell blocks of the Markdown files in root and below root/docs, test and deploy, sorted by
// file name.
func Find(root string) ([]Block, error) {
	files, err := filepath.Glob(filepath.Join(root, "*.md"))
	if err != nil {
		return nil, err
	}
	for _, dir := range []string{"deploy", "docs", "test"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, e fs.DirEntry, err error) error {
			if err == nil && !e.IsDir() && filepath.Ext(path) == ".md" {
				files = append(files, path)
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	var blocks []Block
	for _, f := range files {
		markdown, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		rel, err := filepath.Rel(root, f)
		if err != nil {
			return nil, err
		}
		found, err := Parse(filepath.ToSlash(rel), markdown)
		if err != nil {
			return nil, err
		}
		blocks = append(blocks, found...)
	}
	return blocks, nil
}

// Of returns the blocks of one kind.
func Of(kind Kind, blocks []Block) []Block {
	return slices.DeleteFunc(slices.Clone(blocks), func(b Block) bool { return b.Kind != kind })
}

// Runner runs blocks as a reader would type them.
type Runner struct {
	// Dir is the working directory of a block.
	Dir string
	// Path is put in front of PATH.
	Path []string
	// Env is added to the environment, as "NAME=value".
	Env []string
	// Replace lists pairs (old, new) that are replaced in each block. They are names that differ between reader and
	// test, such as the directory and the addresses of the demo.
	Replace []string
}

// Run passes a block to bash, which stops at the first failed command, and returns the whole output. When ctx
// ends, the shell and its child processes are killed. The error names the block and contains the output.
func (r Runner) Run(ctx context.Context, b Block) (string, error) {
	text := strings.NewReplacer(r.Replace...).Replace(b.Text)
	cmd := exec.CommandContext(ctx, "bash", "-eu", "-o", "pipefail", "-c", text)
	cmd.Dir = r.Dir
	path := strings.Join(append(slices.Clone(r.Path), os.Getenv("PATH")), string(os.PathListSeparator))
	cmd.Env = append(append(os.Environ(), "PATH="+path), r.Env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 40 * time.Second
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return string(out), fmt.Errorf("%s: %w\n%s", b, err, out)
	}
	return string(out), nil
}
