// VERILOG, the paper's fifth program: a switch with one pipelined shared buffer is simulated, as its authors' laboratory built one
// (Katevenis, Vatsolaki, Efthymiou, SIGCOMM 1995). Their model is not public; this is one of ours.
//
// PORTS inputs and outputs; packets of STAGES words, one word a cycle. The buffer is STAGES memories in a row, DEPTH words each: a packet that is written
// begins in the first at some address, and follows through the others a cycle later each. So in every cycle one packet may begin to be
// written or read, and all that began before go on.
//
//   iverilog -g2012 -o switch switch.v && vvp switch +cycles=20000

module switch_top;
    parameter PORTS = 8;
    parameter STAGES = 16;
    parameter DEPTH = 65536;
    parameter WIDTH = 16;
    localparam ADDRESS = $clog2(DEPTH);
    localparam PORT = $clog2(PORTS);

    integer cycles, cycle, port, stage;
    integer sent, received, refused, wrong;
    reg [31:0] random;

    // Input latches: the packet that comes in, word by word, and how much of it has come.
    reg [WIDTH-1:0] latch [0:PORTS*STAGES-1];
    integer arrived [0:PORTS-1];
    reg [PORT-1:0] target [0:PORTS-1];

    // The buffer, its free addresses, and the queue of each output.
    reg [WIDTH-1:0] memory [0:STAGES*DEPTH-1];
    reg [ADDRESS-1:0] free [0:DEPTH-1];
    integer free_head, free_tail, free_count;
    reg [ADDRESS-1:0] queue [0:PORTS*DEPTH-1];
    integer queue_head [0:PORTS-1];
    integer queue_count [0:PORTS-1];

    // What goes through the stages: an operation a stage.
    reg busy [0:STAGES-1];
    reg writes [0:STAGES-1];
    reg [ADDRESS-1:0] address [0:STAGES-1];
    reg [PORT-1:0] of [0:STAGES-1];

    reg [PORT-1:0] turn;
    integer looked, place;
    reg found;
    reg [WIDTH-1:0] word;

    // A packet's first word says where it goes and from where; the others follow from it.
    function [WIDTH-1:0] content(input [WIDTH-1:0] first, input integer at);
        content = first + at * 16'h9e37;
    endfunction

    task draw;
        begin
            random = random ^ (random << 13);
            random = random ^ (random >> 17);
            random = random ^ (random << 5);
        end
    endtask

    initial begin
        if (!$value$plusargs("cycles=%d", cycles)) cycles = 20000;
        random = 32'h2545f491;
        sent = 0; received = 0; refused = 0; wrong = 0; turn = 0;
        free_head = 0; free_tail = 0; free_count = DEPTH;
        for (place = 0; place < DEPTH; place = place + 1) free[place] = place * 12289;
        for (port = 0; port < PORTS; port = port + 1) begin
            arrived[port] = 0; queue_head[port] = 0; queue_count[port] = 0;
        end
        for (stage = 0; stage < STAGES; stage = stage + 1) busy[stage] = 0;

        for (cycle = 0; cycle < cycles; cycle = cycle + 1) begin
            // What is in the pipeline goes a stage further, the last first.
            for (stage = STAGES - 1; stage > 0; stage = stage - 1) begin
                busy[stage] = busy[stage-1];
                writes[stage] = writes[stage-1];
                address[stage] = address[stage-1];
                of[stage] = of[stage-1];
            end
            busy[0] = 0;

            // A word comes in at every port that has a packet under way; load 0.9.
            for (port = 0; port < PORTS; port = port + 1) begin
                if (arrived[port] == 0) begin
                    draw;
                    if (random[7:0] < 8'd230) begin
                        // Two thirds of all packets go to the even ports: their queues grow.
                        target[port] = (random[9:8] == 0) ? random[12:10] : {random[12:11], 1'b0};
                        latch[port*STAGES] = random[31:16];
                        arrived[port] = 1;
                    end
                end else if (arrived[port] < STAGES) begin
                    latch[port*STAGES + arrived[port]] = content(latch[port*STAGES], arrived[port]);
                    arrived[port] = arrived[port] + 1;
                end
            end

            // One operation begins: a packet that has come goes first, then an output in turn.
            found = 0;
            for (looked = 0; looked < PORTS && !found; looked = looked + 1) begin
                port = (turn + looked) % PORTS;
                if (arrived[port] == STAGES) begin
                    found = 1;
                    if (free_count == 0) begin
                        refused = refused + 1;
                        arrived[port] = 0;
                    end else begin
                        busy[0] = 1; writes[0] = 1; of[0] = port; address[0] = free[free_head];
                        free_head = (free_head + 1) % DEPTH;
                        free_count = free_count - 1;
                        place = target[port];
                        queue[place*DEPTH + (queue_head[place] + queue_count[place]) % DEPTH] = address[0];
                        queue_count[place] = queue_count[place] + 1;
                        sent = sent + 1;
                    end
                end
            end
            for (looked = 0; looked < PORTS && !found; looked = looked + 1) begin
                port = (turn + looked) % PORTS;
                if (queue_count[port] > 0) begin
                    found = 1;
                    busy[0] = 1; writes[0] = 0; of[0] = port;
                    address[0] = queue[port*DEPTH + queue_head[port]];
                    queue_head[port] = (queue_head[port] + 1) % DEPTH;
                    queue_count[port] = queue_count[port] - 1;
                end
            end
            turn = turn + 1;

            // Every stage does its part.
            for (stage = 0; stage < STAGES; stage = stage + 1) begin
                if (busy[stage]) begin
                    if (writes[stage]) begin
                        memory[stage*DEPTH + address[stage]] = latch[of[stage]*STAGES + stage];
                        if (stage == STAGES - 1) arrived[of[stage]] = 0;
                        else if (stage == 0) arrived[of[stage]] = STAGES + 1;
                    end else begin
                        word = memory[stage*DEPTH + address[stage]];
                        if (word !== content(memory[address[stage]], stage)) wrong = wrong + 1;
                        if (stage == STAGES - 1) begin
                            free[free_tail] = address[stage];
                            free_tail = (free_tail + 1) % DEPTH;
                            free_count = free_count + 1;
                            received = received + 1;
                        end
                    end
                end
            end
        end
        $display("%0d packets in, %0d out, %0d refused, %0d wrong words", sent, received, refused, wrong);
        $finish;
    end
endmodule
