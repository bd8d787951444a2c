package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	_ "google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

const (
	service = "/test.Echo/"
	large   = 5 << 20
	limit   = 60 * time.Second
)

var stream = &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}

type client struct{ *grpc.ClientConn }

func dial() client {
	conn, err := grpc.NewClient(*address,
		grpc.WithTransportCredentials(transport(false)),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(rawCodec{}), grpc.MaxCallRecvMsgSize(64<<20)))
	if err != nil {
		log.Fatal(err)
	}
	return client{conn}
}

func (c client) unary(ctx context.Context, name string, request []byte, options ...grpc.CallOption) ([]byte, error) {
	var answer []byte
	err := c.Invoke(ctx, service+name, &request, &answer, options...)
	return answer, err
}

// exchange sends messages, ends its side, and returns all answers.
func (c client) exchange(ctx context.Context, name string, messages ...[]byte) ([][]byte, error) {
	call, err := c.NewStream(ctx, stream, service+name)
	if err != nil {
		return nil, err
	}
	sent := make(chan error, 1)
	go func() {
		for _, message := range messages {
			if err := call.SendMsg(&message); err != nil && !errors.Is(err, io.EOF) {
				sent <- err
				return
			}
		}
		sent <- call.CloseSend()
	}()
	var answers [][]byte
	for {
		var answer []byte
		if err := call.RecvMsg(&answer); errors.Is(err, io.EOF) {
			return answers, <-sent
		} else if err != nil {
			return answers, err
		}
		answers = append(answers, answer)
	}
}

// counts returns how many handlers of Wait have begun, and how many were cancelled.
func (c client) counts(ctx context.Context) (begun, cancelled int) {
	raw, _ := c.unary(ctx, "Counts", nil)
	fmt.Sscan(string(raw), &begun, &cancelled)
	return begun, cancelled
}

// until asks for the counts until they are as wanted.
func (c client) until(ctx context.Context, what string, is func(begun, cancelled int) bool) error {
	for ctx.Err() == nil {
		if is(c.counts(ctx)) {
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	return errors.New("the handler was not " + what)
}

func code(err error, wanted codes.Code) error {
	if found := status.Code(err); found != wanted {
		return wrong("code", err, wanted)
	}
	return nil
}

func (c client) download(ctx context.Context, count, size int) error {
	answers, err := c.exchange(ctx, "Download", fmt.Appendf(nil, "%d %d", count, size))
	if err != nil {
		return err
	}
	if len(answers) != count {
		return wrong("messages", len(answers), count)
	}
	for number, answer := range answers {
		if !bytes.Equal(answer, bytes.Repeat([]byte{byte(number)}, size)) {
			return wrong("message", number, "its content")
		}
	}
	return nil
}

func (c client) upload(ctx context.Context, sizes ...int) error {
	total, messages := 0, make([][]byte, len(sizes))
	for i, size := range sizes {
		messages[i] = make([]byte, size)
		total += size
	}
	answers, err := c.exchange(ctx, "Upload", messages...)
	wanted := fmt.Sprintf("%d messages, %d bytes", len(sizes), total)
	if err == nil && (len(answers) != 1 || string(answers[0]) != wanted) {
		return wrong("answers", answers, wanted)
	}
	return err
}

func (c client) both(ctx context.Context, parts ...[]byte) error {
	call, err := c.NewStream(ctx, stream, service+"Both")
	if err != nil {
		return err
	}
	for _, part := range parts {
		var answer []byte
		if err := call.SendMsg(&part); err != nil {
			return err
		}
		if err := call.RecvMsg(&answer); err != nil {
			return err
		}
		if !bytes.Equal(answer, reversed(part)) {
			return wrong("answer", len(answer), len(part))
		}
	}
	if err := call.CloseSend(); err != nil {
		return err
	}
	var none []byte
	if err := call.RecvMsg(&none); !errors.Is(err, io.EOF) {
		return wrong("end", err, io.EOF)
	}
	return nil
}

var noise = func() []byte {
	out, state := make([]byte, large), uint32(1)
	for i := range out {
		state = state*1664525 + 1013904223
		out[i] = byte(state >> 24)
	}
	return out
}()

var checks = []struct {
	name string
	run  func(ctx context.Context, c client) error
}{
	{"unary", func(ctx context.Context, c client) error {
		for _, size := range []int{0, 3, 16380, 65536, large} {
			answer, err := c.unary(ctx, "Unary", noise[:size])
			if err != nil {
				return err
			}
			if !bytes.Equal(answer, noise[:size]) {
				return wrong("answer", len(answer), size)
			}
		}
		return nil
	}},
	{"upload", func(ctx context.Context, c client) error {
		return errors.Join(c.upload(ctx, 1, 0, 2), c.upload(ctx, large, large, large))
	}},
	{"download", func(ctx context.Context, c client) error {
		return errors.Join(c.download(ctx, 0, 0), c.download(ctx, 1000, 100), c.download(ctx, 3, large))
	}},
	{"both", func(ctx context.Context, c client) error {
		return c.both(ctx, []byte("abc"), []byte{}, noise)
	}},
	{"compressed", func(ctx context.Context, c client) error {
		answer, err := c.unary(ctx, "Unary", make([]byte, 100_000), grpc.UseCompressor("gzip"))
		if err == nil && len(answer) != 100_000 {
			return wrong("answer", len(answer), 100_000)
		}
		return err
	}},
	{"metadata", func(ctx context.Context, c client) error {
		ctx = metadata.AppendToOutgoingContext(ctx, "x-sent", "Bearer a, b")
		call, err := c.NewStream(ctx, stream, service+"Both")
		if err != nil {
			return err
		}
		head, err := call.Header()
		if err != nil {
			return err
		}
		if found := fmt.Sprint(head.Get("greeting"), head.Get("seen")); found != "[hello] [Bearer a, b]" {
			return wrong("greeting", found, "hello, and what was sent")
		}
		return call.CloseSend()
	}},
	{"deadline", func(ctx context.Context, c client) error {
		_, before := c.counts(ctx)
		short, done := context.WithTimeout(ctx, time.Second)
		defer done()
		if _, err := c.unary(short, "Wait", nil); code(err, codes.DeadlineExceeded) != nil {
			return err
		}
		return c.until(ctx, "cancelled", func(_, cancelled int) bool { return cancelled > before })
	}},
	{"cancel", func(ctx context.Context, c client) error {
		begun, cancelled := c.counts(ctx)
		inner, cancel := context.WithCancel(ctx)
		defer cancel()
		ended := make(chan error, 1)
		go func() {
			_, err := c.unary(inner, "Wait", nil)
			ended <- err
		}()
		if err := c.until(ctx, "begun", func(now, _ int) bool { return now > begun }); err != nil {
			return err
		}
		cancel()
		if err := <-ended; code(err, codes.Canceled) != nil {
			return err
		}
		return c.until(ctx, "cancelled", func(_, now int) bool { return now > cancelled })
	}},
	{"error", func(ctx context.Context, c client) error {
		_, err := c.unary(ctx, "Fail", []byte("NOT_FOUND"))
		if text := status.Convert(err).Message(); text != "why: 100 % of ü" {
			return wrong("text", text, "why: 100 % of ü")
		}
		return code(err, codes.NotFound)
	}},
	{"missing", func(ctx context.Context, c client) error {
		_, err := c.unary(ctx, "Missing", nil)
		return code(err, codes.Unimplemented)
	}},
	{"too-large", func(ctx context.Context, c client) error {
		_, err := c.unary(ctx, "Unary", make([]byte, 8<<20+1))
		return code(err, codes.ResourceExhausted)
	}},
	{"early", func(ctx context.Context, c client) error {
		messages := make([][]byte, 100)
		for i := range messages {
			messages[i] = make([]byte, 100_000)
		}
		answers, err := c.exchange(ctx, "Early", messages...)
		if err == nil && (len(answers) != 1 || string(answers[0]) != "early") {
			return wrong("answers", answers, "early")
		}
		return err
	}},
	{"many", func(ctx context.Context, c client) error {
		var group sync.WaitGroup
		found := make([]error, 1000)
		for i := range found {
			group.Go(func() {
				answer, err := c.unary(ctx, "Unary", fmt.Append(nil, i))
				if err == nil && string(answer) != fmt.Sprint(i) {
					err = wrong("answer", answer, i)
				}
				found[i] = err
			})
		}
		group.Wait()
		return errors.Join(found...)
	}},
}

func runChecks() {
	c := dial()
	defer c.Close()
	for _, check := range checks {
		ctx, done := context.WithTimeout(context.Background(), limit)
		report(check.name, check.run(ctx, c))
		done()
	}
}

// runDrain calls without a pause while the server leaves, and another takes its place.
func runDrain() {
	c := dial()
	defer c.Close()
	ctx, done := context.WithTimeout(context.Background(), limit)
	defer done()
	first, err := c.unary(ctx, "Name", nil)
	if err != nil {
		report("drain", err)
		return
	}
	ended := make(chan error, 1)
	go func() {
		answer, err := c.unary(ctx, "Wait", nil)
		if err == nil && string(answer) != "waited" {
			err = wrong("answer", answer, "waited")
		}
		ended <- err
	}()
	if err := c.until(ctx, "begun", func(begun, _ int) bool { return begun > 0 }); err != nil {
		report("drain", err)
		return
	}
	say(map[string]any{"event": "waiting"})
	for hasMoved := false; ; {
		select {
		case err := <-ended:
			if err == nil && !hasMoved {
				err = errors.New("the call ended before another server took over")
			}
			report("drain", err)
			return
		default:
		}
		name, err := c.unary(ctx, "Name", nil)
		if err != nil {
			report("drain", err)
			return
		}
		if !hasMoved && !bytes.Equal(name, first) {
			hasMoved = true
			say(map[string]any{"event": "moved"})
		}
	}
}
